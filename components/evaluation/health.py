"""Health rules of online training: thresholds on round metrics that trigger `warn`, `roll_back` or `stop`.
Pure functions.

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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

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
        rule_function, limit, action = RULES[name], rule["limit"], rule["action"]
        try:
            before = max(history, key=_gold) if rule_function is gold_drop else history[0]
            tripped, value, reason = rule_function(before, history[-1], limit)
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


def _ratio(now: float, first: float) -> float:
    return now / first if first else (1.0 if now == first else math.inf)


def length_ratio(first: Metrics, now: Metrics, limit: float) -> tuple[bool, float, str]:
    ratio = _ratio(now["length"], first["length"])
    return (
        not 1 / limit <= ratio <= limit,
        ratio,
        f"answers are {ratio:.2f} times as long as in the first round ({now['length']:.1f} against "
        f"{first['length']:.1f} "
        f"tokens); allowed are {1 / limit:.2f} to {limit:.2f}",
    )


def distinct_2_ratio(first: Metrics, now: Metrics, limit: float) -> tuple[bool, float, str]:
    ratio = _ratio(now["distinct_2"], first["distinct_2"])
    return (
        ratio < limit,
        ratio,
        f"the share of distinct word pairs fell to {ratio:.2f} of the first round's; at least {limit:g} "
        "allowed",
    )


def kl(first: Metrics, now: Metrics, limit: float) -> tuple[bool, float, str]:
    return (
        now["kl"] > limit,
        now["kl"],
        f"KL to the initial policy is {now['kl']:.2f} nats per sequence; at most {limit:g} allowed",
    )


def entropy(first: Metrics, now: Metrics, limit: float) -> tuple[bool, float, str]:
    return (
        now["entropy"] < limit,
        now["entropy"],
        f"entropy is {now['entropy']:.2f} nats per token; at least {limit:g} allowed",
    )


def truncated(first: Metrics, now: Metrics, limit: float) -> tuple[bool, float, str]:
    return (
        now["truncated"] > limit,
        now["truncated"],
        f"{now['truncated']:.0%} of the answers were cut; at most {limit:.0%} allowed",
    )


def equal_rewards(first: Metrics, now: Metrics, limit: float) -> tuple[bool, float, str]:
    if "equal_rewards" not in now:  # unscored answers, such as those of the final weights
        return False, 0.0, ""
    return (
        now["equal_rewards"] > limit,
        now["equal_rewards"],
        f"all answers to {now['equal_rewards']:.0%} of the prompts got the same reward "
        f"({now['reward']:.3g} on average), which teaches nothing; at most "
        f"{limit:.0%} allowed",
    )


def reward_without_gold(first: Metrics, now: Metrics, limit: float) -> tuple[bool, float, str]:
    """Over-optimisation (Gao et al., 2022): the optimised reward rises while the gold score does not.

    "Does not rise" means by no more than one standard error of the change over prompts, so a flat gold score
    is detected five times in six; a threshold of zero would detect it every second time only.
    """
    gain, gold = now["reward"] - first["reward"], now["gold"] - first["gold"]
    flat = math.hypot(first["gold.error"], now["gold.error"])
    value = gain if math.isfinite(gold) else gold
    return (
        gain > limit and gold <= flat,
        value,
        f"the optimised reward rose by {gain:.3g} since the first round (over {limit:g}) while the gold "
        f"score changed by {gold:.3g}, and its standard "
        f"error is {flat:.2g}",
    )


def gold_drop(best: Metrics, now: Metrics, limit: float) -> tuple[bool, float, str]:
    """Late over-optimisation: the gold score falls below its best round, whatever the reward does.

    The rounds have prompts of their own, so the fall must also be larger than the half width of its 95 %
    interval: by one standard error, and from the best of the rounds, every third run of three rounds would be
    rolled back by chance.
    """
    fall = best["gold"] - now["gold"]
    reach = 1.96 * math.hypot(best["gold.error"], now["gold.error"])
    return (
        fall > max(limit, reach),
        fall,
        f"the gold score is {fall:.3g} [{fall - reach:.3g}, {fall + reach:.3g}] below the best round's; "
        f"allowed is {limit:g}",
    )


def _gold(round_metrics: Metrics) -> float:
    gold = round_metrics.get("gold", math.nan)
    return gold if math.isfinite(gold) else -math.inf


RULES: dict[str, Callable[[Metrics, Metrics, float], tuple[bool, float, str]]] = {
    rule.__name__: rule
    for rule in (
        length_ratio,
        kl,
        entropy,
        truncated,
        distinct_2_ratio,
        equal_rewards,
        reward_without_gold,
        gold_drop,
    )
}
