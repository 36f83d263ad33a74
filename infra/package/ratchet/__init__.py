"""Ratchet: workflow-orchestrated post-training of language models, from Python.

    recipe = ratchet.load_recipe("instruct", set={"online.rounds": 2})
    recipe.check()
    run = ratchet.run(recipe, home="out")
    run.results()                      # a pandas frame: one row a metric, with its 95 % interval
    run.groups("annotate_1")           # one row an answer, with its rewards
    model, tokenizer = run.model("final")

`import ratchet` imports nothing else; each name is loaded when it is used. Below this API are `ratchet.flows`
(the Prefect flows and the command line), `ratchet.tasks` (stages as tasks, tracking, registry, data versions)
and `ratchet.components` (the library of pieces).
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ratchet.components.errors import RatchetError
    from ratchet.flows.api import Recipe, load_recipe, load_run, run, runs
    from ratchet.flows.reading import Run
    from ratchet.flows.reward_scores import RewardModel

__all__ = ["RatchetError", "Recipe", "RewardModel", "Run", "load_recipe", "load_run", "run", "runs"]
_PLACES = {"RatchetError": "components.errors", "RewardModel": "flows.reading", "Run": "flows.reading"}


def __getattr__(name: str) -> object:
    import importlib

    if name == "__version__":
        return importlib.import_module("importlib.metadata").version("ratchet-rlhf")
    if name not in __all__:
        raise AttributeError(f"module 'ratchet' has no attribute {name!r}")
    value = globals()[name] = getattr(
        importlib.import_module(f"ratchet.{_PLACES.get(name, 'flows.api')}"), name
    )
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
