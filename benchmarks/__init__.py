"""Benchmarks: the same work by this project and by other libraries, in turn on the same inputs (`python -m
benchmarks --help`).
"""
