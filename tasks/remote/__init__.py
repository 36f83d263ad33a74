"""Stages on other machines: work pools, transfer of products."""
