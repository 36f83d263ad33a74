"""Reward for an answer that is one of several right ones."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.errors import DataError
from ratchet.components.piece import piece
from ratchet.components.types import Columns, Context, Group


@piece(writes=("reward.accepted",), by_group=True)
def accepted(groups: Sequence[Group], ctx: Context) -> Columns:
    """1 if an answer, without spaces around it, is one of the list `accepted` in the prompt's meta, else 0.
    `DataError` for a prompt without that list.
    """
    return {
        "reward.accepted": [
            [float(path.text.strip() in accepted_answers(group)) for path in group.trajectories]
            for group in groups
        ]
    }


def accepted_answers(group: Group) -> list[str]:
    """The right answers to a prompt."""
    found = group.prompt.meta.get("accepted")
    if not found:
        raise DataError(
            f"accepted: expected a list of right answers in meta.accepted of the prompt {group.prompt.id!r}, "
            f"got {found!r}"
        )
    return list(found)
