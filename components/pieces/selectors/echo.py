"""Preference pairs that teach a reward model that repeating the prompt is no answer."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.data.instructions.families import FAMILIES, instruction_text
from ratchet.components.piece import piece
from ratchet.components.pieces.selectors.pairs import drawn, with_worse
from ratchet.components.types import Context, Group, Prompt


@piece(reads=("margin",), writes=("margin",), makes="pairs", paper="arXiv:2309.16155")
def echo(groups: Sequence[Group], ctx: Context, *, reward: str = "reward.instructions", verifier: str = "rewards.instructions") -> list[Group]:
    """The pairs, and one more for each prompt, of kind `echo`: the first chosen answer against the prompt's instruction said again, in a
    wording that training may use, alone or before the answer, or against its question, which `verifier` must fail. A policy that
    is optimised against a reward model repeats its instruction ("Your answer must end with a question.") unless the reward model has seen it
    fail. Which of the three depends on seed and prompt id alone.
    """
    def repeated(prompt: Prompt, answer: str) -> str:
        instruction, key = prompt.meta["instruction"], f"{ctx.seed}/{prompt.id}"
        family = instruction["family"]
        again = instruction_text(family, drawn(FAMILIES[family].seen_wordings, key)[0], instruction["params"])
        question = prompt.messages[-1]["content"].removesuffix(instruction["text"]).strip()
        return drawn((again, f"{again} {answer}", question), key)[0]

    return with_worse(groups, ctx, repeated, kind="echo", reward=reward, verifier=verifier)
