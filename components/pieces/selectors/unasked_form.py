"""Selector `unasked_form`: preference pairs that teach a reward model to reject formats that were not
requested.
"""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.piece import piece
from ratchet.components.pieces.rewards.instructions import FORMS, in_form
from ratchet.components.pieces.selectors.pairs import drawn, with_worse
from ratchet.components.types import Context, Group, Prompt


@piece(reads=("margin",), writes=("margin",), makes="pairs", paper="arXiv:2309.16155")
def unasked_form(
    groups: Sequence[Group],
    ctx: Context,
    *,
    reward: str = "reward.instructions",
    verifier: str = "rewards.instructions",
) -> list[Group]:
    """Adds one pair of kind `form` per prompt: the first chosen answer against itself in a format that only
    other instructions require (`rewards.instructions.FORMS`); `verifier` must fail it. Otherwise a reward
    model sees these formats almost only in chosen answers and rewards them everywhere. The format depends on
    seed and prompt id only.
    """

    def in_some_form(prompt: Prompt, answer: str) -> str:
        return in_form(answer, drawn(FORMS, f"{ctx.seed}/{prompt.id}")[0])

    return with_worse(groups, ctx, in_some_form, kind="form", reward=reward, verifier=verifier)
