"""Preference pairs that teach a reward model what a form is worth that no prompt asked for."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.piece import piece
from ratchet.components.pieces.rewards.instructions import FORMS, in_form
from ratchet.components.pieces.selectors.pairs import drawn, with_worse
from ratchet.components.types import Context, Group, Prompt


@piece(reads=("margin",), writes=("margin",), makes="pairs", paper="arXiv:2309.16155")
def unasked_form(groups: Sequence[Group], ctx: Context, *, reward: str = "reward.instructions", verifier: str = "rewards.instructions") -> list[Group]:
    """The pairs, and one more for each prompt, of kind `form`: the first chosen answer against itself in a form that only other
    instructions ask for (`rewards.instructions.FORMS`), which `verifier` must fail. Without them a reward model sees a form almost only
    in chosen answers, where it was asked for, and rewards it everywhere. Which form depends on seed and prompt id alone.
    """
    def in_some_form(prompt: Prompt, answer: str) -> str:
        return in_form(answer, drawn(FORMS, f"{ctx.seed}/{prompt.id}")[0])

    return with_worse(groups, ctx, in_some_form, kind="form", reward=reward, verifier=verifier)
