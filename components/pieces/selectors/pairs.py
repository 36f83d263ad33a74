"""Helpers to make preference pairs from scored groups. Not a piece."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import TypeVar

from ratchet.components.piece import build
from ratchet.components.pieces.advantages.read import rewards_of
from ratchet.components.types import Context, Group, Prompt, Trajectory

T = TypeVar("T")


def pair(
    group: Group,
    chosen: int,
    rejected: int,
    values: Sequence[float],
    ctx: Context,
    reward: str,
    min_margin: float = 0.0,
) -> list[Group]:
    """A group of the two trajectories, chosen first, with `margin` on both rows and provenance in the
    prompt's meta; [] with a reason in `ctx.counts` if they do not form a pair.
    """
    best, worst = group.trajectories[chosen], group.trajectories[rejected]
    margin = values[chosen] - values[rejected]
    compared = (
        (best, worst) if chosen != rejected else group.trajectories
    )  # equal indices: all rewards are equal
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
        "policy": best.weights,
        "policy_rejected": worst.weights,
        "reward": reward,
        "reward_models": group.prompt.meta.get("reward_models", {}).get(reward, {}),
        "seed": ctx.seed,
        "round": ctx.round,
        "decoding": dict(best.meta),
        "margin": margin,
        "responses": len(group.trajectories),
    }
    made = group.take([chosen, rejected]).with_columns(margin=[margin] * 2)
    prompt = dataclasses.replace(group.prompt, meta={**group.prompt.meta, "pair": origin})
    return [dataclasses.replace(made, prompt=prompt)]


def penalised_rewards(group: Group, reward: str, length_penalty: float) -> list[float]:
    """r - length_penalty x answer tokens."""
    return [
        r - length_penalty * sum(t.mask)
        for r, t in zip(rewards_of(group, reward), group.trajectories, strict=True)
    ]


def with_worse(
    groups: Sequence[Group],
    ctx: Context,
    worse: Callable[[Prompt, str], str],
    *,
    kind: str,
    reward: str,
    verifier: str,
) -> list[Group]:
    """Adds one pair of this `kind` per prompt: the first chosen answer against `worse(prompt, answer)`, if
    the verifier fails the latter.
    """
    rescore = build("annotate", {"name": verifier})
    made: list[Group] = []
    for _, members in groupby(groups, key=lambda group: group.prompt.id):
        pairs = list(members)
        made += pairs
        prompt, chosen = pairs[0].prompt, bare(pairs[0].trajectories[0])
        rejected = dataclasses.replace(
            chosen, messages=({**chosen.messages[-1], "content": worse(prompt, chosen.text.strip())},)
        )
        whole = Group(prompt, (chosen, rejected))
        values = [math.nan if value is None else value for value in rescore([whole], ctx)[reward][0]]
        found = pair(whole.extended({reward: values}), 0, 1, values, ctx, reward)
        made += [of_kind(one, kind) for one in found]
        ctx.counts[f"pairs of kind {kind}"] += len(found)
    return made


def bare(trajectory: Trajectory) -> Trajectory:
    """The answer without tokens, which belong to another prompt."""
    return dataclasses.replace(trajectory, inputs={}, mask=(), logprobs=None)


def of_kind(group: Group, kind: str) -> Group:
    """The pair with its kind in the prompt's meta."""
    meta = {**group.prompt.meta, "pair": {**group.prompt.meta["pair"], "kind": kind}}
    return dataclasses.replace(group, prompt=dataclasses.replace(group.prompt, meta=meta))


def drawn(values: Iterable[T], key: str) -> list[T]:
    """The values in pseudo-random order, a function of `key` only."""
    return sorted(values, key=lambda value: hashlib.sha256(f"{key}/{value}".encode()).digest())


def part(groups: Sequence[Group], share: float) -> float:
    """`share` of the number of groups, without the rounding error of the product: 7 % of 100 are 7."""
    return round(len(groups) * share, 9)


def first_share(
    groups: Sequence[Group], ranks: Sequence[float], share: float, ctx: Context, reason: str
) -> list[Group]:
    """The `share` of groups with the lowest ranks, rounded up, in their order; ties go to the earlier group.
    Those left out are counted under `reason`.
    """
    kept = sorted(sorted(range(len(groups)), key=lambda i: ranks[i])[: math.ceil(part(groups, share))])
    ctx.counts[reason] += len(groups) - len(kept)
    return [groups[i] for i in kept]
