"""This machine: its packages, hardware, load and measured speed."""
