"""Outputs on disk, and what their keys depend on."""
