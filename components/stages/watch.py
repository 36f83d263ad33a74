"""Training health monitor of on-policy steps: evaluates health rules on recent samples and rolls back to the
last healthy state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, final

from ratchet.components.errors import HealthError
from ratchet.components.evaluation.health import ACTIONS, check
from ratchet.components.protocols import Memory
from ratchet.components.stages.probe import require_ended
from ratchet.components.training import ranks

ENOUGH = 64
"""Minimum number of answers per check; smaller steps are pooled, since they would trip rules by chance."""


@final
class Health:
    """Applies `online.health` and `fit.min_ended` to the answers of steps. Part of the checkpoint.

    If any rule has the action `roll_back`, the last healthy state of everything `learned` from answers, by
    name (learners with their optimizers, models that follow them, schedules), is kept in memory for a
    rollback.
    """

    def __init__(self, options: Mapping[str, Any], learned: Mapping[str, Memory]) -> None:
        self.rules, self.min_ended = options["health"], options["fit"]["min_ended"]
        self.learned, self.keeps = (
            learned,
            any(rule and rule["action"] == "roll_back" for rule in self.rules.values()),
        )
        self.first: Mapping[str, float] = {}
        self.waiting: list[Mapping[str, float]] = []
        self.tripped_rules: dict[str, dict[str, Any]] = {}
        self.healthy = self._now(0)

    def __call__(self, step: int, round_metrics: Mapping[str, float], run: dict[str, Any]) -> bool:
        """Check the metrics of a step. Returns True if the learners were rolled back to the last healthy
        weights; `run` then has the number of `updates` of those weights, and one more `rolled_back` step.
        Steps with few answers are pooled with later ones first. `HealthError` if a rule says `stop`,
        `ContractError` if too few answers end.
        """
        self.waiting.append(round_metrics)
        answers = sum(p["responses"] for p in self.waiting)
        if answers < ENOUGH:
            return False
        names = [name for name in round_metrics if all(name in p for p in self.waiting)]
        now = {name: sum(p[name] * p["responses"] for p in self.waiting) / answers for name in names}
        self.waiting = []
        require_ended(1 - now["truncated"], round(answers), self.min_ended)
        found = check([self.first, now] if self.first else [now], self.rules)
        self.first = self.first or now
        for verdict in found:
            times = self.tripped_rules.get(verdict.rule, {}).get("times", 0) + 1
            self.tripped_rules[verdict.rule] = {
                "step": step,
                "action": verdict.action,
                "reason": verdict.reason,
                "times": times,
            }
        stops = [verdict.reason for verdict in found if verdict.action == "stop"]
        if stops:
            raise HealthError(
                f"step {step} was stopped by a health rule: {'; '.join(stops)}. The output is not "
                "published; fix the cause "
                "or change `online.health` and run again"
            )
        rolled_back = any(verdict.action == "roll_back" for verdict in found)
        if rolled_back:
            healthy = ranks.once(lambda: self.healthy)
            for name, memory in self.learned.items():
                memory.restore(healthy["learned"][name])
            run.update(updates=healthy["updates"], rolled_back=run["rolled_back"] + 1)
        else:
            self.healthy = self._now(run["updates"])
        return rolled_back

    def summary(self) -> dict[str, Any]:
        """Rules tripped in the whole run: the most severe action, and the latest reason of each rule, most
        severe first.
        """
        tripped = sorted(self.tripped_rules.values(), key=lambda rule: -ACTIONS.index(rule["action"]))
        return {
            "verdict": tripped[0]["action"] if tripped else "ok",
            "verdicts": [
                f"{rule['reason']} (at step {rule['step']}, {rule['times']} times in all)" for rule in tripped
            ],
        }

    def state(self) -> dict[str, Any]:
        return {
            "first": dict(self.first),
            "waiting": [dict(p) for p in self.waiting],
            "tripped_rules": self.tripped_rules,
            "healthy": self.healthy,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        self.first, self.waiting, self.tripped_rules, self.healthy = (
            state["first"],
            list(state["waiting"]),
            dict(state["tripped_rules"]),
            state["healthy"],
        )

    def _now(self, updates: int) -> dict[str, Any]:
        if not self.keeps:
            return {}
        return {
            "learned": {name: memory.state() for name, memory in self.learned.items()},
            "updates": updates,
        }
