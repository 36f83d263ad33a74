"""Selector `echo`: preference pairs that teach a reward model to reject repetitions of the prompt."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.data.instructions.families import FAMILIES, instruction_text
from ratchet.components.piece import piece
from ratchet.components.pieces.selectors.pairs import drawn, with_worse
from ratchet.components.types import Context, Group, Prompt


@piece(reads=("margin",), writes=("margin",), makes="pairs", paper="arXiv:2309.16155")
def echo(
    groups: Sequence[Group],
    ctx: Context,
    *,
    reward: str = "reward.instructions",
    verifier: str = "rewards.instructions",
) -> list[Group]:
    """Adds one pair of kind `echo` per prompt: the first chosen answer against a repetition of the
    instruction in a training wording (alone, or before the answer) or of the question; `verifier` must fail
    it. A policy optimised against a reward model otherwise learns to repeat its instruction ("Your answer
    must end with a question."). The choice of the three depends on seed and prompt id only.
    """

    def repeated(prompt: Prompt, answer: str) -> str:
        instruction, key = prompt.meta["instruction"], f"{ctx.seed}/{prompt.id}"
        family = instruction["family"]
        again = instruction_text(family, drawn(FAMILIES[family].seen_wordings, key)[0], instruction["params"])
        question = prompt.messages[-1]["content"].removesuffix(instruction["text"]).strip()
        return drawn((again, f"{again} {answer}", question), key)[0]

    return with_worse(groups, ctx, repeated, kind="echo", reward=reward, verifier=verifier)
