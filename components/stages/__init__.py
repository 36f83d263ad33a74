"""What each stage does: one function a stage, files in, files out. `components.run` calls them in a process of their own."""

STAGES = {  # what a stage does -> the module that holds the function of that name
    "fetch_data": "components.stages.fetch",
    "fetch_model": "components.stages.fetch",
    "make_tiny": "components.stages.tiny",
    "curate": "components.stages.curate",
    "validate": "tasks.validation",
    "demonstrate": "components.stages.demonstrate",
    "sft": "components.stages.train",
    "optimise": "components.stages.train",
    "reward": "components.stages.reward",
    "certify": "components.stages.certify",
    "gold": "components.stages.gold",
    "prepare_offline": "components.stages.experience",
    "rollout": "components.stages.experience",
    "annotate": "components.stages.experience",
    "select": "components.stages.experience",
    "improve": "components.stages.improve",
    "evaluate": "components.stages.evaluate",
}
