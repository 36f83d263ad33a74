"""Dense rewards: one number per segment of an answer, on the segment's last token."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Literal

from ratchet.components.errors import DataError
from ratchet.components.piece import build, piece
from ratchet.components.types import OK, Columns, Context, Group, Trajectory


@piece(writes=("dense",), models=("policy",), paper="arXiv:2306.01693", by_group=True)
def fine_grained(
    groups: Sequence[Group],
    ctx: Context,
    *,
    scorer: str = "rewards.sentiment",
    segment: Literal["token", "sentence", "answer"] = "sentence",
) -> Columns:
    """`dense`, lists (T): score(y up to segment j) - score(y up to segment j - 1) on the last token of
    segment j, 0 elsewhere (Fine-Grained RLHF, detoxification: the reward of each sentence is the change of
    the classifier's score). The sum over an answer is score(y) - score(empty answer), whatever the segments,
    so that only the credit assignment differs from the one segment `answer`, whose reward is at the end. A
    sentence ends at . ! ? or with the answer. `scorer`: a reward piece that scores texts or their tokens. A
    text that it skips has the score of the text before, the empty answer 0. `DataError` if it fails.
    """
    decode, score = ctx.models["policy"].decode, build("annotate", {"name": scorer})
    made = []
    for group in groups:
        ends = [segment_ends(t, decode, segment) for t in group.trajectories]
        prefixes = [
            cut(t, step, text)
            for t, of in zip(group.trajectories, ends, strict=True)
            for step, text in {-1: "", **of}.items()
        ]
        written = score([Group(group.prompt, tuple(prefixes))], ctx)
        (name,) = (column for column in written if not column.endswith(".status"))
        statuses = written.get(f"{name}.status", [[OK] * len(prefixes)])[0]
        if failed := next((status for status in statuses if status.startswith("failed")), ""):
            raise DataError(f"rewards.fine_grained: prompt {group.prompt.id!r}: {scorer} {failed}")
        values, rows = iter(written[name][0]), []
        for trajectory, of in zip(group.trajectories, ends, strict=True):
            row, first = [0.0] * len(trajectory.mask), next(values)
            before = 0.0 if first is None else first
            for step in of:
                after = next(values)
                after = before if after is None else after
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
        ended = segment == "sentence" and text.rstrip().endswith((".", "!", "?"))
        if segment == "token" or ended or number == len(steps):
            found[step] = text
    return found


def cut(trajectory: Trajectory, step: int, text: str) -> Trajectory:
    """The trajectory up to a step (-1: the empty answer), whose text is `text`."""
    return dataclasses.replace(
        trajectory,
        messages=({"role": "assistant", "content": text},),
        inputs={"tokens": trajectory.inputs["tokens"][: step + 1]},
        mask=trajectory.mask[: step + 1],
        logprobs=None,
    )
