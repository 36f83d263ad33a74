"""Content-addressed store, checkpoints, and the tracing of source code for store keys."""
