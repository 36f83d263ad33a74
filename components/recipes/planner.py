"""State of planning: the stages so far, and where each model and data set is made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ratchet.components.errors import RecipeError
from ratchet.components.piece import describe
from ratchet.components.recipes.phases import Phase
from ratchet.components.recipes.plain_values import plain
from ratchet.components.recipes.profile import Profile
from ratchet.components.recipes.schema import Recipe, Spec
from ratchet.components.recipes.source_keys import source_digest
from ratchet.components.storage.definitions import Sources
from ratchet.components.storage.store import digest

PLACE = ("name", "ranks", "machines", "engines", "zero_stage", "offload_optimizer", "offload_parameters")
"""Profile keys that are not part of store keys, so that a stage can resume with another number of ranks."""
NOT_SEEDED = (
    "fetch_data",
    "fetch_model",
    "make_tiny",
    "make_tiny_vision",
    "make_new",
    "curate",
    "validate",
    "gold",
    "answers",
    "merge",
)  # independent of the run's seed, or with a seed of their own


@dataclass(frozen=True)
class Stage:
    """One unit of work. `does`: name of its function in the module `STAGES[does]`; `part`: of the run;
    `phase`: the phase's path in the recipe; `policy`: whether the policy so far is its output; `certifies`:
    the reward model whose certificate it makes.
    """

    name: str
    does: str
    kind: str
    options: Mapping[str, Any]
    inputs: Mapping[str, str] = field(default_factory=dict)
    key: str = ""
    round: int | None = None
    part: Literal["curate", "train", "evaluate"] = "train"
    phase: str = ""
    policy: bool = False
    certifies: str = ""

    @property
    def title(self) -> str:
        return self.name.replace("_", " ")


class Planner:
    """Stages so far, and the stage behind every name: `models` (of the recipe, then of phases), `data` (data
    set -> stage and file), `policy` (so far), `initial` (called SFT by evaluation), `certificates`, `gold`,
    `rounds` (weights after each online round, and the stage with its scores), `policies` (trained ones).
    """

    def __init__(self, recipe: Recipe, profile: Profile, sources: Sources) -> None:
        self.recipe, self.sources = recipe, sources
        self.sizes = {name: value for name, value in plain(profile).items() if name != "hardware"}
        self.stages: dict[str, Stage] = {}
        self.models: dict[str, str] = {}
        self.data: dict[str, tuple[str, str]] = {}
        self.certificates: dict[str, str] = {}
        self.answers: dict[str, tuple[str, Sequence[Spec]]] = {}  # data set -> its answers, and their scores
        self.gold: dict[str, str] = {}
        self.rounds: list[tuple[str, str]] = []
        self.policies: set[str] = set()
        self.curated = self.policy = self.initial = ""

    def add(
        self,
        name: str,
        does: str,
        kind: str,
        options: Mapping[str, Any],
        inputs: Mapping[str, str] | None = None,
        heavy: bool = True,
        phase: Phase | None = None,
        **more: Any,
    ) -> str:
        """Plan a stage and return its name. `heavy`: it reads the profile."""
        if name in self.stages:
            where = phase.where if phase else name
            raise RecipeError(f"{where}: another stage has the name {name!r}; rename this phase")
        inputs = dict(inputs or {})
        seed = phase.seed(self.recipe.seed) if phase else self.recipe.seed
        seeded = {} if does in NOT_SEEDED else {"seed": seed}
        given = {**plain(options), **seeded, **({"profile": self.sizes} if heavy else {})}
        code = source_digest(does, given, self.sources)
        kept = (
            {**given, "profile": {k: v for k, v in self.sizes.items() if k not in PLACE}} if heavy else given
        )
        if does == "rollout":  # only a bound: a run with more or fewer rounds keeps finished ones
            kept = {key: value for key, value in kept.items() if key != "rounds"}
        key = digest([name, does, kept, {k: self.stages[v].key for k, v in inputs.items()}, code])
        more["phase"] = phase.where if phase else ""
        self.stages[name] = Stage(name, does, kind, given, inputs, key, **more)
        return name

    def source(self, name: str) -> tuple[str, str]:
        """Stage and file of a data set: what an earlier phase made, else the curated split."""
        return self.data.get(name, (self.curated, name))

    def start(self, phase: Phase) -> str:
        """Stage with the model that a phase starts from."""
        return self.models[phase.of] if phase.of else self.policy

    def named(self, *specs: Sequence[Spec], slot: str = "annotate", **own: str) -> dict[str, str]:
        """Stages of the models that pieces name, with their certificates. `own`: stages of names that have a
        meaning in this phase only, such as `reference`.
        """
        names = {
            name
            for part in specs
            for spec in part
            for name in describe(slot, spec["name"]).named("models", spec)
        }
        known = {**self.models, **own}
        found = {name: known[name] for name in sorted(names) if name != "policy" and name in known}
        certificates = {f"{n}_certificate": self.certificates[n] for n in found if n in self.certificates}
        return {**found, **certificates}


def pick(section: Any, *names: str) -> dict[str, Any]:
    return {name: plain(getattr(section, name)) for name in names}
