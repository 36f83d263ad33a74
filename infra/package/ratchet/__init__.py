"""Ratchet: workflow-orchestrated post-training of language models.

`ratchet.flows` are the Prefect flows and the command line, `ratchet.tasks` the stages as tasks (tracking, registry, data versions), and
`ratchet.components` the library of pieces, which imports no platform.
"""
