"""Dense rewards: one number per segment of an answer, on the segment's last token."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

from ratchet.components.piece import build, piece
from ratchet.components.types import Columns, Context, Group, Trajectory


@piece(writes=("dense",), models=("policy",), paper="arXiv:2306.01693", by_group=True)
def fine_grained(
    groups: Sequence[Group],
    ctx: Context,
    *,
    scorer: str = "rewards.sentiment",
    segment: Literal["token", "sentence"] = "sentence",
) -> Columns:
    """`dense`, lists (T): score(y up to segment j) - score(y up to segment j - 1) on the last token of
    segment j, 0 elsewhere (Fine-Grained RLHF, detoxification: the reward of each sentence is the change of
    the classifier's score). The sum over an answer is score(y) - score(empty answer), whatever the segments,
    so that only the credit assignment differs from a reward at the end. A sentence ends at . ! ? or with the
    answer. `scorer`: a reward piece that scores texts.
    """
    decode, score = ctx.models["policy"].decode, build("annotate", {"name": scorer})
    made = []
    for group in groups:
        ends = [segment_ends(t, decode, segment) for t in group.trajectories]
        prefixes = [
            cut(t, text)
            for t, of in zip(group.trajectories, ends, strict=True)
            for text in ("", *of.values())
        ]
        (column,) = (
            v
            for k, v in score([Group(group.prompt, tuple(prefixes))], ctx).items()
            if not k.endswith(".status")
        )
        values, rows = iter(column[0]), []
        for trajectory, of in zip(group.trajectories, ends, strict=True):
            row, before = [0.0] * len(trajectory.mask), next(values)
            for step in of:
                after = next(values)
                row[step], before = after - before, after
            rows.append(row)
        made.append(rows)
    return {"dense": made}


def segment_ends(trajectory: Trajectory, decode, segment: str) -> dict[int, str]:
    """Step of each segment's last token -> the answer's text up to there."""
    steps = [t for t, chosen in enumerate(trajectory.mask) if chosen]
    tokens = trajectory.inputs["tokens"]
    found = {}
    for number, step in enumerate(steps, start=1):
        text = decode([tokens[t] for t in steps[:number]])
        if segment == "token" or number == len(steps) or text.rstrip().endswith((".", "!", "?")):
            found[step] = text
    return found


def cut(trajectory: Trajectory, text: str) -> Trajectory:
    """The trajectory with another text, without tokens."""
    messages = ({"role": "assistant", "content": text},)
    return dataclasses.replace(trajectory, messages=messages, inputs={}, mask=(), logprobs=None)
