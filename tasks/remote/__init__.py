"""Stages on other machines: Prefect work pools, artifact transfer."""
