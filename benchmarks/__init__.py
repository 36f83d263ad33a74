"""The same work done here and by other libraries, one after the other on the same inputs: `python -m benchmarks --help`."""
