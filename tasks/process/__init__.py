"""Process management: stage subprocesses, ranks, locks, cancellation, a local Prefect server."""
