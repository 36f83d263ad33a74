"""Selector `mismatched`: adds answers to other prompts, for KTO's reference point."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence

from ratchet.components.errors import DataError
from ratchet.components.piece import piece
from ratchet.components.text.images import images_of
from ratchet.components.types import Context, Group, Trajectory


@piece(writes=("trained",), paper="arXiv:2402.01306")
def mismatched(groups: Sequence[Group], ctx: Context) -> list[Group]:
    """Adds to each trajectory one that answers another prompt of the data (section 4.1: y' of (x, y')). Added
    trajectories are last in their group, have no column values and enter no loss: the new column `trained` is
    False for them. The choice depends on seed and prompt ids; none is longer than the data's longest
    trajectory. Trajectories must be tokenised.
    """
    rows = sorted(
        ((number, path) for number, group in enumerate(groups) for path in group.trajectories),
        key=lambda row: hashlib.sha256(
            f"{ctx.seed}/mismatched/{groups[row[0]].prompt.id}/{row[0]}/{row[1].text}".encode()
        ).digest(),
    )
    longest = max((len(path.mask) for _, path in rows), default=0)
    added: dict[int, list[Trajectory]] = {number: [] for number in range(len(groups))}
    for place, (number, path) in enumerate(rows):
        prompt_tokens, shown = _prompt(path), images_of(groups[number].prompt)
        others = (rows[(place + step) % len(rows)] for step in range(1, len(rows)))
        other = next(
            (
                other
                for at, other in others
                if _prompt(other) != prompt_tokens or images_of(groups[at].prompt) != shown
            ),
            None,
        )
        if other is None:
            raise DataError(
                f"all {len(rows)} answers have the same prompt (first: {groups[0].prompt.id!r}), but "
                "KTO's reference point needs "
                "answers to other prompts; use data with several prompts"
            )
        start = len(_prompt(other))
        tokens, mask = (
            [*prompt_tokens, *other.inputs["tokens"][start:]],
            [*[False] * len(prompt_tokens), *other.mask[start:]],
        )
        added[number].append(
            dataclasses.replace(
                other,
                inputs={"tokens": tokens[:longest]},
                mask=mask[:longest],
                logprobs=None,
                spans=(),
                parent=None,
            )
        )
    made = []
    for number, group in enumerate(groups):
        own, more = len(group.trajectories), added[number]
        columns = {name: [*values, *[None] * len(more)] for name, values in group.columns.items()}
        made.append(
            Group(
                group.prompt,
                (*group.trajectories, *more),
                {**columns, "trained": [True] * own + [False] * len(more)},
            )
        )
        for label in group.columns.get("label", ()):
            ctx.counts[f"answers with label {'true' if label else 'false'}"] += 1
    return made


def _prompt(path: Trajectory) -> list[int]:
    """The tokens before the first masked-in token."""
    return list(path.inputs["tokens"][: list(path.mask).index(True)])
