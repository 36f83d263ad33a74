"""What an earlier run of a recipe sampled and kept, in place of the bounds that the recipe states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ratchet.components.estimates.split import Split


@dataclass(frozen=True)
class Observed:
    """`answers`: mean length of an answer in sampled tokens; `groups`: number of groups that a stage kept;
    `data`: sizes of the data sets that a stage made from answers; `steps`: optimiser steps of a stage that
    trained; by stage name. `run`: the earlier run.
    """

    answers: Mapping[str, float] = field(default_factory=dict)
    groups: Mapping[str, float] = field(default_factory=dict)
    data: Mapping[str, Mapping[str, Split]] = field(default_factory=dict)
    run: str = ""
    steps: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        results: Mapping[str, Mapping[str, Any]],
        data: Mapping[str, Mapping[str, Split]] | None = None,
        run: str = "",
    ) -> Observed:
        """From the metadata of stages (stage name → what it returned)."""
        answers, groups = {}, {}
        for name, meta in results.items():
            counts = meta.get("counts") or {}
            if meta.get("tokens") and counts.get("responses"):
                answers[name] = meta["tokens"] / counts["responses"]
            if kept := [count for what, count in counts.items() if what.startswith("groups after ")]:
                groups[name] = float(kept[-1])
        steps = {name: float(meta["steps"]) for name, meta in results.items() if meta.get("steps")}
        return cls(answers, groups, data or {}, run, steps)

    def answer(self, stage: str, most: float) -> float:
        """Mean length of the answers of a stage, of all answers where this one's are unknown; `most` where
        none are known.
        """
        all_known = sum(self.answers.values()) / len(self.answers) if self.answers else most
        return min(most, self.answers.get(stage, all_known))
