"""Training loop, batching, loss reductions and distributed helpers."""
