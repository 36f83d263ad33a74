"""Environments with observations and actions of real numbers, many episodes stepped together."""
