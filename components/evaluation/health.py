"""Health rules of an online loop: look at the rounds so far and say `warn`, `hold` or `stop`, with a reason. Pure.

    health:
      length_ratio:        {limit: 1.6, action: hold}    # mean length against the first round's, longer or shorter
      kl:                  {limit: 20.0, action: stop}   # nats a sequence to the initial policy
      entropy:             {limit: 0.3, action: warn}    # nats a token; lower trips
      truncated:           {limit: 0.5, action: warn}    # share of answers cut by the token limit
      distinct_2_ratio:    {limit: 0.6, action: hold}    # diversity against the first round's; lower trips
      reward_without_gold: {limit: 0.5, action: hold}    # reward rose by more than this, gold did not rise at all
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from components.errors import RecipeError, nearest

Action = Literal["warn", "hold", "stop"]
ACTIONS: tuple[Action, ...] = ("warn", "hold", "stop")
Panel = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Verdict:
    """A rule that tripped: `hold` keeps the previous policy this round, `stop` ends the run."""

    rule: str
    action: Action
    value: float
    limit: float
    reason: str


def check(history: Sequence[Panel], rules: Mapping[str, Mapping[str, Any]]) -> list[Verdict]:
    """The rules that tripped in the newest panel of `history` (oldest first; the first is the yardstick of ratios).

    A number that is not finite trips its rule. A number that the newest of several panels does not hold cannot be
    judged and gives a warning that says so. Raises `RecipeError` for an unknown rule, key or action.
    """
    found = []
    for name, rule in rules.items():
        limit, action = _rule(name, rule)
        try:
            tripped, value, reason = RULES[name](history[0], history[-1], limit)
        except KeyError as missing:
            if len(history) > 1:  # the first round may come before there is anything to measure against
                found.append(Verdict(name, "warn", math.nan, limit, f"{name} cannot be judged: the round has no {missing}"))
            continue
        if tripped or not math.isfinite(value):
            found.append(Verdict(name, action, value, limit, reason))
    return found


def _rule(name: str, rule: Mapping[str, Any]) -> tuple[float, Action]:
    if name not in RULES:
        raise RecipeError(f"online.health: no rule named {name!r}{nearest(name, RULES)}")
    for key in rule:
        if key not in ("limit", "action"):
            raise RecipeError(f"online.health.{name}: unknown key {key!r}{nearest(key, ('limit', 'action'))}")
    if "limit" not in rule:
        raise RecipeError(f"online.health.{name}: needs a `limit`")
    action = rule.get("action", "warn")
    if action not in ACTIONS:
        raise RecipeError(f"online.health.{name}.action: {action!r} is not an action{nearest(str(action), ACTIONS)}")
    return float(rule["limit"]), action


def _ratio(now: float, first: float) -> float:
    return now / first if first else (1.0 if now == first else math.inf)


def length_ratio(first: Panel, now: Panel, limit: float) -> tuple[bool, float, str]:
    ratio = _ratio(now["length"], first["length"])
    return (not 1 / limit <= ratio <= limit, ratio,
            f"answers are {ratio:.2f} times as long as in the first round ({now['length']:.1f} against {first['length']:.1f} "
            f"tokens); allowed {1 / limit:.2f} to {limit:.2f}")


def distinct_2_ratio(first: Panel, now: Panel, limit: float) -> tuple[bool, float, str]:
    ratio = _ratio(now["distinct_2"], first["distinct_2"])
    return ratio < limit, ratio, f"the share of distinct word pairs fell to {ratio:.2f} of the first round's; at least {limit:g} allowed"


def kl(first: Panel, now: Panel, limit: float) -> tuple[bool, float, str]:
    return now["kl"] > limit, now["kl"], f"KL to the initial policy is {now['kl']:.2f} nats a sequence; at most {limit:g} allowed"


def entropy(first: Panel, now: Panel, limit: float) -> tuple[bool, float, str]:
    return now["entropy"] < limit, now["entropy"], f"entropy is {now['entropy']:.2f} nats a token; at least {limit:g} allowed"


def truncated(first: Panel, now: Panel, limit: float) -> tuple[bool, float, str]:
    return now["truncated"] > limit, now["truncated"], f"{now['truncated']:.0%} of the answers were cut; at most {limit:.0%} allowed"


def reward_without_gold(first: Panel, now: Panel, limit: float) -> tuple[bool, float, str]:
    """Over-optimisation (Gao et al., 2022): the optimised reward climbs while the independent judge does not."""
    rewards = [key for key in now if key.startswith("reward.")]
    if not rewards:
        raise KeyError("reward")
    name = rewards[-1]  # the last reward written is the one selection reads
    gain, gold = now[name] - first[name], now["gold"] - first["gold"]
    value = gain if math.isfinite(gold) else gold
    return (gain > limit and gold <= 0, value,
            f"{name} rose by {gain:.3g} since the first round (over {limit:g}) while the gold score changed by {gold:.3g}")


RULES: dict[str, Callable[[Panel, Panel, float], tuple[bool, float, str]]] = {
    rule.__name__: rule for rule in (length_ratio, kl, entropy, truncated, distinct_2_ratio, reward_without_gold)
}
