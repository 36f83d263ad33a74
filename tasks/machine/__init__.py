"""The local machine: packages, hardware, load, throughput."""
