"""Processes: launch, ranks, locks, cancellation, Prefect's own server."""
