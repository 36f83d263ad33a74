"""Preference pairs out of scored groups: shared by the selectors that make them, no piece itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ratchet.components.advantages.read import rewards_of
from ratchet.components.types import Context, Group


def pair(group: Group, chosen: int, rejected: int, values: Sequence[float], ctx: Context, reward: str,
         min_margin: float = 0.0) -> list[Group]:
    """The two trajectories as one group, chosen first, with `margin` on both rows and the pair's origin in the prompt's meta; nothing
    when they are no pair, which `ctx.counts` counts by its reason."""
    best, worst = group.trajectories[chosen], group.trajectories[rejected]
    margin = values[chosen] - values[rejected]
    compared = (best, worst) if chosen != rejected else group.trajectories  # one index: the best is no better than the worst
    if len(group.trajectories) < 2:
        why = "groups of one answer"
    elif all(t.messages == best.messages for t in compared):
        why = "identical texts"
    elif not margin > 0:
        why = "ties"
    else:
        why = "" if margin >= min_margin else "margins under min_margin"
    if why:
        ctx.counts[why] += 1
        return []
    origin = {
        "policy": best.weights, "policy_rejected": worst.weights, "reward": reward, "judges": group.prompt.meta.get("judges", {}).get(reward, {}),
        "seed": ctx.seed, "round": ctx.round, "decoding": dict(best.meta), "margin": margin, "responses": len(group.trajectories),
    }
    made = group.take([chosen, rejected]).with_columns(margin=[margin] * 2)
    prompt = dataclasses.replace(group.prompt, meta={**group.prompt.meta, "pair": origin})
    return [dataclasses.replace(made, prompt=prompt)]


def judged(group: Group, reward: str, length_penalty: float) -> list[float]:
    """r - length_penalty x chosen tokens."""
    return [r - length_penalty * sum(t.mask) for r, t in zip(rewards_of(group, reward), group.trajectories, strict=True)]
