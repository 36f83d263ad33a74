"""Health rules of online training: thresholds on round metrics that trigger `warn`, `roll_back` or `stop`.
The rules are the pieces of `components/pieces/health`: functions (history, *, limit) -> (tripped, value,
reason).

    health:
      length_ratio:        {limit: 1.6, action: roll_back}  # mean length against the first round's
      kl:                  {limit: 20.0, action: stop}  # nats per sequence to the initial policy; needs
                                                        # `watch.kl_prompts`
      entropy:             {limit: 0.3, action: warn}   # nats per token; lower trips
      truncated:           {limit: 0.5, action: warn}   # share of answers cut by the token limit
      distinct_2_ratio:    {limit: 0.6, action: roll_back}  # diversity, against the first round's
      equal_rewards:       {limit: 0.9, action: warn}   # share of prompts whose answers all have the same
                                                        # reward (no learning signal)
      reward_without_gold: {limit: 0.5, action: roll_back}  # reward rose by more than this, gold by less
                                                             # than its standard error
      gold_drop:           {limit: 0.05, action: roll_back}  # gold fell below the best round by more than
                                                             # this and than chance (95 %)

In rounds, every round is evaluated. In on-policy steps (`components/stages/watch.py`), every step of at least
64 answers, or as many steps as make 64. The gold score exists in rounds only.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ratchet.components.piece import build

Action = Literal["warn", "roll_back", "stop"]
ACTIONS: tuple[Action, ...] = ("warn", "roll_back", "stop")
Metrics = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A tripped rule: `roll_back` keeps the previous policy for this round, `stop` ends the run."""

    rule: str
    action: Action
    value: float
    limit: float
    reason: str


def check(history: Sequence[Metrics], rules: Mapping[str, Mapping[str, Any] | None]) -> list[Verdict]:
    """The rules tripped by the newest entry of `history` (oldest first; ratios are relative to the first).

    A metric that is not finite trips its rule. A missing metric gives a warning after the first round. A rule
    of None is off.
    """
    found = []
    for name, rule in rules.items():
        if rule is None:
            continue
        limit, action = rule["limit"], rule["action"]
        try:
            tripped, value, reason = build("health", {"name": name, "limit": limit})(history)
        except KeyError as missing:
            if len(history) > 1:  # the first round has nothing to compare with
                found.append(
                    Verdict(
                        name,
                        "warn",
                        math.nan,
                        limit,
                        f"{name} cannot be evaluated: the round has no metric {missing}",
                    )
                )
            continue
        if tripped or not math.isfinite(value):
            found.append(Verdict(name, action, value, limit, reason))
    return found


def ratio_of(now: float, first: float) -> float:
    """`now` against `first`; 1 for two zeros."""
    return now / first if first else (1.0 if now == first else math.inf)
