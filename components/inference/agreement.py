"""Sampler and learner on the same weights: how far apart are their log-probs of the same answers?"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ratchet.components.errors import ContractError
from ratchet.components.inference.answers import trajectory
from ratchet.components.types import Group, Prompt, Request, Sample

FEW = 4
"""Answers that are compared after a change of weights."""
EXACT = 1e-3
"""Largest difference of a log-prob where both compute in float32; 1e-5 to 1e-4 is usual."""
ROUNDED = 0.25
"""Mean difference of a log-prob where either computes in half precision. A 135M model in bfloat16 is 0.06 from itself in float32, and 0.6
at worst: a round of learning moves it no further, so this finds other models and broken prompts, and the engine's `weights` the stale ones."""


class Gap(NamedTuple):
    """Absolute differences of log-probs over chosen steps, nats."""

    worst: float
    mean: float


def gap(groups: Sequence[Group], scored: Sequence[Mapping[str, Sequence[Sequence[float]]]]) -> Gap:
    """Between the trajectories' own log-probs and those of `Engine.score`; (0, 0) where nobody kept any."""
    steps = [abs(p - q) for group, rows in zip(groups, scored, strict=True)
             for path, row in zip(group.trajectories, rows["logprobs"], strict=True) if path.logprobs is not None
             for p, q, chosen in zip(path.logprobs, row, path.mask, strict=True) if chosen]
    steps = [math.inf if math.isnan(step) else step for step in steps]
    return Gap(max(steps, default=0.0), sum(steps) / max(len(steps), 1))


def require_agreement(found: Gap, profile: Mapping[str, Any]) -> float:
    """The largest difference. `ContractError` when it is more than the precisions of a profile explain."""
    half = profile["precision"] != "float32" or (profile["engine"] == "vllm" and profile["vllm"]["dtype"] != "float32")
    kind, value, bound = ("on average", found.mean, ROUNDED) if half else ("at worst", found.worst, EXACT)
    if not value <= bound:
        raise ContractError(f"sampler and learner disagree by {value:.2g} nats in log-prob {kind} on the same weights and answers (at most {bound:g} "
                            "expected): the sampler holds other weights, or reads the prompt otherwise, and learning from its answers would be "
                            "off-policy. Was the engine refreshed after the last update?")
    return found.worst


def fresh(groups: Sequence[Group]) -> list[Group]:
    """The first sampled answers of the first few groups, each alone."""
    return [g.take([0]) for g in groups if g.trajectories and g.trajectories[0].logprobs is not None][:FEW]


def as_groups(requests: Sequence[Request], answers: Sequence[Sequence[Sample]]) -> list[Group]:
    """The first answer to each request as a group of one, in tokens alone."""
    return [Group(Prompt(str(i), ()), (trajectory(request, samples[0], "", "", {}),))
            for i, (request, samples) in enumerate(zip(requests, answers, strict=True))]
