"""Selector `corrections`: demonstrations of how an answer is corrected, from preference pairs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from ratchet.components.errors import DataError
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Bool
from ratchet.components.types import Context, Group, Message, Prompt, Trajectory


@piece(makes="answers", paper="arXiv:2409.00162")
def corrections(
    groups: Sequence[Group], ctx: Context, *, identity: Bool = True, instruction: str = "Correct it."
) -> list[Group]:
    """Training data for a sequence-to-sequence reward model (section 3.1). Each preference pair (chosen
    first) gives the *correction* (prompt, rejected -> chosen) and, with `identity`, also (prompt, chosen ->
    chosen). Each is one group with one answer; its prompt goes on with the answer to correct and
    `instruction` as two more turns, as in `rewards.correction`. `likelihood` on these groups is the paper's
    loss with equal weights. `DataError` for a group that is not a pair.

    Without the identity a corrector never sees an answer that it should leave as it is.
    """
    made = []
    for group in groups:
        if len(group.trajectories) != 2:
            raise DataError(
                f"corrections: prompt {group.prompt.id!r} has {len(group.trajectories)} answers, expected a "
                "preference pair, chosen first"
            )
        chosen, rejected = (
            dataclasses.replace(t, inputs={}, mask=(), logprobs=None) for t in group.trajectories
        )
        made.append(Group(with_draft(group.prompt, rejected, instruction), (chosen,)))
        if identity:
            made.append(Group(with_draft(group.prompt, chosen, instruction, "same"), (chosen,)))
    return made


def with_draft(prompt: Prompt, draft: Trajectory, instruction: str, name: str = "corrected") -> Prompt:
    """The prompt followed by an answer and the request to correct it."""
    turns: tuple[Message, ...] = (
        {"role": "assistant", "content": draft.text},
        {"role": "user", "content": instruction},
    )
    return dataclasses.replace(prompt, id=f"{prompt.id}/{name}", messages=(*prompt.messages, *turns))
