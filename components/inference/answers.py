"""Conversion of engine outputs into trajectories and reward-model scores."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ratchet.components.types import OK, Context, Group, Request, Sample, Trajectory

if TYPE_CHECKING:
    from ratchet.components.protocols import Engine


def trajectory(request: Request, answer: Sample, text: str, weights: str, meta: dict) -> Trajectory:
    """An engine's sample as a trajectory. The loss mask is False on the prompt and True on the answer."""
    before = len(request.tokens)
    return Trajectory(
        messages=({"role": "assistant", "content": text},),
        inputs={"tokens": [*request.tokens, *answer.tokens]},
        mask=[False] * before + [True] * len(answer.tokens),
        logprobs=[0.0] * before + list(answer.logprobs),
        actor="policy",
        weights=weights,
        stop=answer.stop,
        meta=meta,
    )


def encoded_anew(engine: Engine, group: Group) -> Group:
    """The texts of the group's answers, tokenised by `engine` after the group's prompt, without log-probs. An
    answer cut at its token limit gets no end-of-turn token, since none was sampled.
    """
    bare = [dataclasses.replace(t, inputs={}, mask=(), logprobs=None) for t in group.trajectories]
    encoded = engine.encode(group.replace(bare))
    return group.replace([_without_end(t) if t.stop == "length" else t for t in encoded.trajectories])


def _without_end(trajectory: Trajectory) -> Trajectory:
    inputs = {**trajectory.inputs, "tokens": trajectory.inputs["tokens"][:-1]}
    return dataclasses.replace(trajectory, inputs=inputs, mask=trajectory.mask[:-1])


def reward_model_scores(
    groups: Sequence[Group], ctx: Context, model: str
) -> tuple[list[list[Any]], list[list[str]]]:
    """Scores and statuses of a reward model, one list per group. Texts are rendered with the reward model's
    own chat template. An empty answer is skipped; a score that is not finite has failed.
    """
    engine = ctx.models[model]
    bare = [
        Group(
            g.prompt, tuple(dataclasses.replace(t, inputs={}, mask=(), logprobs=None) for t in g.trajectories)
        )
        for g in groups
    ]
    rows = engine.score([engine.encode(group) for group in bare], frozenset({"scores"}))
    values, statuses = [], []
    for group, row in zip(groups, rows, strict=True):
        status = [_status(t.text, s) for t, s in zip(group.trajectories, row["scores"], strict=True)]
        values.append(
            [float(s) if what == OK else None for s, what in zip(row["scores"], status, strict=True)]
        )
        statuses.append(status)
    return values, statuses


def _status(text: str, score: float) -> str:
    if not text.strip():
        return "skipped: the answer is empty"
    return OK if math.isfinite(score) else f"failed: the reward model gave {score}"
