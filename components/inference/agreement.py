"""Comparison of log-probs between inference engine and trainer, for the same weights and answers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ratchet.components.errors import ContractError
from ratchet.components.inference.answers import trajectory
from ratchet.components.text.images import showing
from ratchet.components.types import Group, Request, Sample

FEW = 4
"""Number of answers compared after each weight update."""
EXACT = 1e-3
"""Largest allowed log-prob difference (nats) if both compute in float32; 1e-5 to 1e-4 is usual."""
ROUNDED = 0.25
"""Largest allowed mean log-prob difference (nats) if either computes in half precision. For a 135M model,
bfloat16 and float32 differ by 0.06 on average and 0.6 at worst. One training round changes log-probs by no
more, so this bound detects a different model or prompt; stale weights are detected by their digest.
"""


class Gap(NamedTuple):
    """Absolute log-prob differences over sampled tokens, in nats."""

    worst: float
    mean: float


def gap(groups: Sequence[Group], scored: Sequence[Mapping[str, Sequence[Sequence[float]]]]) -> Gap:
    """Differences between the sampler's log-probs in `groups` and those of `Engine.score`; (0, 0) if no
    trajectory has sampler log-probs.
    """
    steps = [
        abs(p - q)
        for group, rows in zip(groups, scored, strict=True)
        for path, row in zip(group.trajectories, rows["logprobs"], strict=True)
        if path.logprobs is not None
        for p, q, chosen in zip(path.logprobs, row, path.mask, strict=True)
        if chosen
    ]
    steps = [math.inf if math.isnan(step) else step for step in steps]
    return Gap(max(steps, default=0.0), sum(steps) / max(len(steps), 1))


def require_agreement(found: Gap, profile: Mapping[str, Any]) -> float:
    """Return the largest difference. `ContractError` if it exceeds what the precisions of the profile
    explain.
    """
    half = profile["precision"] != "float32" or (
        profile["engine"] == "vllm" and profile["vllm"]["dtype"] != "float32"
    )
    kind, value, bound = ("on average", found.mean, ROUNDED) if half else ("at worst", found.worst, EXACT)
    if not value <= bound:
        raise ContractError(
            f"log-prob mismatch between inference engine and trainer: {value:.2g} nats {kind} on the same "
            "answers (at most "
            f"{bound:g} expected). Likely stale weights or different tokenisation; check that the engine "
            "was refreshed "
            "after the last update"
        )
    return found.worst


def fresh(groups: Sequence[Group]) -> list[Group]:
    """The first of the policy's own answers in each of the first few groups, as groups of one."""
    own = [
        (g, [i for i, t in enumerate(g.trajectories) if t.actor == "policy" and t.logprobs and any(t.mask)])
        for g in groups
    ]
    return [g.take(found[:1]) for g, found in own if found][:FEW]


def as_groups(requests: Sequence[Request], answers: Sequence[Sequence[Sample]]) -> list[Group]:
    """The first answer to each request as a group of one, as tokens only."""
    return [
        Group(showing(str(i), request.images), (trajectory(request, samples[0], "", "", {}),))
        for i, (request, samples) in enumerate(zip(requests, answers, strict=True))
    ]
