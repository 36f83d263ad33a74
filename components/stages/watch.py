"""Health by steps: what a policy says while it learns is held to the same rules as the answers of a round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from ratchet.components.errors import HealthError
from ratchet.components.evaluation.health import ACTIONS, check
from ratchet.components.stages.probe import require_ended
from ratchet.components.training import ranks

ENOUGH = 64
"""Answers that are judged together: one step's, or those of several small ones, which alone would trip by chance."""


@final
class Health:
    """Judges the answers of steps by `online.health` and `fit.min_ended`, and knows the way back. Part of the checkpoint.

    Where a rule may `hold`, what learns and its optimiser are kept in memory as they were when they were last found well.
    """

    def __init__(self, options: Mapping[str, Any], learner: Any) -> None:
        self.rules, self.min_ended = options["health"], options["fit"]["min_ended"]
        self.learner, self.keeps = learner, any(rule and rule["action"] == "hold" for rule in self.rules.values())
        self.first: Mapping[str, float] = {}
        self.waiting: list[Mapping[str, float]] = []
        self.told: dict[str, dict[str, Any]] = {}
        self.well = self._now(0)

    def __call__(self, step: int, round_metrics: Mapping[str, float], run: dict[str, Any]) -> bool:
        """Whether the learner, whose answers `panel` is about, is back at the weights that were last well; `run` then counts the
        `updates` that those took, and one more step `held`. With too few answers nothing is said before those of later steps have joined.
        `HealthError` when a rule says `stop`, `ContractError` when the answers do not end.
        """
        self.waiting.append(round_metrics)
        answers = sum(p["responses"] for p in self.waiting)
        if answers < ENOUGH:
            return False
        now = {name: sum(p[name] * p["responses"] for p in self.waiting) / answers for name in round_metrics}
        self.waiting = []
        require_ended(1 - now["truncated"], round(answers), self.min_ended)
        found = check([self.first, now] if self.first else [now], self.rules)
        self.first = self.first or now
        for verdict in found:
            times = self.told.get(verdict.rule, {}).get("times", 0) + 1
            self.told[verdict.rule] = {"step": step, "action": verdict.action, "reason": verdict.reason, "times": times}
        stops = [verdict.reason for verdict in found if verdict.action == "stop"]
        if stops:
            raise HealthError(f"step {step} was stopped by a health rule: {'; '.join(stops)}. Nothing is published; change `online.health` "
                              "or the cause and run again")
        held = any(verdict.action == "hold" for verdict in found)
        if held:
            well = ranks.once(lambda: self.well)
            self.learner.restore(well["learner"])
            run.update(updates=well["updates"], held=run["held"] + 1)
        else:
            self.well = self._now(run["updates"])
        return held

    def summary(self) -> dict[str, Any]:
        """What tripped in the whole run: the gravest action, and each rule's latest reason, the gravest first."""
        tripped = sorted(self.told.values(), key=lambda rule: -ACTIONS.index(rule["action"]))
        return {"verdict": tripped[0]["action"] if tripped else "ok",
                "verdicts": [f"{rule['reason']} (at step {rule['step']}, {rule['times']} times in all)" for rule in tripped]}

    def state(self) -> dict[str, Any]:
        return {"first": dict(self.first), "waiting": [dict(p) for p in self.waiting], "told": self.told, "well": self.well}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.first, self.waiting, self.told, self.well = state["first"], list(state["waiting"]), dict(state["told"]), state["well"]

    def _now(self, updates: int) -> dict[str, Any]:
        return {"learner": self.learner.state(), "updates": updates} if self.keeps else {}
