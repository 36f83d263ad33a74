"""Stage functions: each reads input files and writes output files. `ratchet.components.stages.run` calls them
in a separate process.
"""

SIMULATED_PEOPLE = "ratchet.tasks.labels.simulated"
"""Module of simulated annotators. It is imported by name, since it needs the server of the labelling page.
Store keys of the stage `ask` depend on its source, but not on the server or the page (its `SERVER`), since
an edit of the page must not ask people again.
"""
LABEL_VALIDATION = "ratchet.tasks.data.label_validation"
"""Module of the validation of labels, as `validate` of data."""
WAITING = ("ask",)
"""Kinds of stages that wait for people, and hold no GPU meanwhile."""
STAGES = {  # kind of stage -> module with the function of that name
    "fetch_data": "ratchet.components.stages.fetch",
    "fetch_model": "ratchet.components.stages.fetch",
    "make_tiny": "ratchet.components.stages.tiny",
    "make_tiny_vision": "ratchet.components.stages.tiny",
    "make_new": "ratchet.components.stages.tiny",
    "curate": "ratchet.components.stages.curate",
    "validate": "ratchet.tasks.data.validation",
    "demonstrate": "ratchet.components.stages.demonstrate",
    "sft": "ratchet.components.stages.train",
    "optimise": "ratchet.components.stages.train",
    "reward": "ratchet.components.stages.reward",
    "certify": "ratchet.components.stages.certify",
    "gold": "ratchet.components.stages.gold",
    "prepare_offline": "ratchet.components.stages.experience",
    "rollout": "ratchet.components.stages.experience",
    "propose": "ratchet.components.stages.propose",
    "ask": "ratchet.components.stages.ask",
    "annotate": "ratchet.components.stages.experience",
    "select": "ratchet.components.stages.experience",
    "improve": "ratchet.components.stages.improve",
    "merge": "ratchet.components.stages.merge",
    "answers": "ratchet.components.stages.answers",
    "evaluate": "ratchet.components.stages.evaluate",
}
