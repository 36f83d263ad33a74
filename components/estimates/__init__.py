"""Estimates of memory, disk and time of a recipe on a profile."""
