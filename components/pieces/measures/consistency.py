"""Measure `consistency`: whether a reward model prefers the answer to a prompt over that to a similar one."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.inference.answers import reward_model_scores
from ratchet.components.piece import piece
from ratchet.components.pieces.selectors.similar import most_similar
from ratchet.components.types import Context, Group, Trajectory


@piece(paper="arXiv:2309.16155")
def consistency(groups: Sequence[Group], ctx: Context, *, model: str = "reward_model") -> list[list[float]]:
    """Response consistency of a reward model R (Contrast Instructions, C_res): 1 if R(I, r) > R(I, r'), 1/2
    if they are equal, else 0, where r is the data's answer to the prompt I and r' that to the most similar
    prompt with another answer (`most_similar`, among the prompts with one). 1/2 is chance. The policy's
    answers do not enter: each gets the number of its prompt, 1/2 where the data have no answer.
    """
    questions = [group.prompt.messages[-1]["content"] for group in groups]
    answers = [group.prompt.answer or "" for group in groups]
    known = [i for i, answer in enumerate(answers) if answer]
    others = most_similar([questions[i] for i in known], [answers[i] for i in known])
    pairs = [
        Group(groups[i].prompt, (_reply(answers[i]), _reply(answers[known[other]])))
        for i, other in zip(known, others, strict=True)
        if other is not None
    ]
    scored = reward_model_scores(pairs, ctx, model)[0]
    preferred = {
        pair.prompt.id: (float(own > other) + 0.5 * (own == other))
        for pair, (own, other) in zip(pairs, scored, strict=True)
        if own is not None and other is not None
    }
    return [[preferred.get(group.prompt.id, 0.5)] * len(group.trajectories) for group in groups]


def _reply(text: str) -> Trajectory:
    return Trajectory(({"role": "assistant", "content": text},))
