"""Health rules of an online loop: look at the answers so far and say `warn`, `hold` or `stop`, with a reason. Pure.

    health:
      length_ratio:        {limit: 1.6, action: hold}    # mean length against the first round's, longer or shorter
      kl:                  {limit: 20.0, action: stop}   # nats a sequence to the initial policy; needs `watch.kl_prompts`
      entropy:             {limit: 0.3, action: warn}    # nats a token; lower trips
      truncated:           {limit: 0.5, action: warn}    # share of answers cut by the token limit
      distinct_2_ratio:    {limit: 0.6, action: hold}    # diversity against the first round's; lower trips
      equal_rewards:       {limit: 0.9, action: warn}    # share of prompts whose answers all got one reward: these teach nothing
    reward_without_gold: {limit: 0.5, action: hold}    # reward rose by more than this, gold by less than its standard error
      gold_drop:           {limit: 0.05, action: hold}   # gold fell by more than this, and its standard error, below the best round's

By rounds each round is judged, by steps (`components/stages/watch.py`) each step of at least 64 answers, or as many small ones as
make 64; the gold judge sees rounds only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

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


def check(history: Sequence[Panel], rules: Mapping[str, Mapping[str, Any] | None]) -> list[Verdict]:
    """The rules that tripped in the newest panel of `history` (oldest first; the first is the yardstick of ratios).

    A number that is not finite trips its rule. A number that the newest of several panels does not hold cannot be
    judged and gives a warning that says so. A rule that is None is not asked.
    """
    found = []
    for name, rule in rules.items():
        if rule is None:
            continue
        judge, limit, action = RULES[name], rule["limit"], rule["action"]
        try:
            before = max(history, key=_gold) if judge is gold_drop else history[0]
            tripped, value, reason = judge(before, history[-1], limit)
        except KeyError as missing:
            if len(history) > 1:  # the first round may come before there is anything to measure against
                found.append(Verdict(name, "warn", math.nan, limit, f"{name} cannot be judged: the round has no {missing}"))
            continue
        if tripped or not math.isfinite(value):
            found.append(Verdict(name, action, value, limit, reason))
    return found


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


def equal_rewards(first: Panel, now: Panel, limit: float) -> tuple[bool, float, str]:
    if "equal_rewards" not in now:  # answers that nobody scored, such as those of a run's last weights
        return False, 0.0, ""
    return (now["equal_rewards"] > limit, now["equal_rewards"],
            f"all answers to {now['equal_rewards']:.0%} of the prompts got the same reward ({now['reward']:.3g} on average), which teaches nothing; at most "
            f"{limit:.0%} allowed")


def reward_without_gold(first: Panel, now: Panel, limit: float) -> tuple[bool, float, str]:
    """Over-optimisation (Gao et al., 2022): the optimised reward climbs while the independent judge does not.

    Flat is a rise of no more than one standard error of the change, taken over prompts: five times in six a judge that stands still
    is seen to. Were it no rise at all, noise would hide every second one.
    """
    gain, gold = now["reward"] - first["reward"], now["gold"] - first["gold"]
    flat = math.hypot(first["gold.error"], now["gold.error"])
    value = gain if math.isfinite(gold) else gold
    return (gain > limit and gold <= flat, value,
            f"the reward that selection reads rose by {gain:.3g} since the first round (over {limit:g}) while the gold score changed by {gold:.3g}, and its standard "
            f"error is {flat:.2g}")


def gold_drop(best: Panel, now: Panel, limit: float) -> tuple[bool, float, str]:
    """The later half of over-optimisation: the gold score, which had risen, falls again while the reward may still climb."""
    fall = best["gold"] - now["gold"]
    noise = math.hypot(best["gold.error"], now["gold.error"])
    return (fall > max(limit, noise), fall,
            f"the gold score is {fall:.3g} below the best round's (over {limit:g}), and the standard error of the difference is {noise:.2g}")


def _gold(round_metrics: Panel) -> float:
    gold = round_metrics.get("gold", math.nan)
    return gold if math.isfinite(gold) else -math.inf


RULES: dict[str, Callable[[Panel, Panel, float], tuple[bool, float, str]]] = {
    rule.__name__: rule for rule in (length_ratio, kl, entropy, truncated, distinct_2_ratio, equal_rewards, reward_without_gold, gold_drop)
}
