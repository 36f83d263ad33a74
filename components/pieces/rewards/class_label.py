"""Rewards of a classification: whether the answer, or the whole text, is the class."""

from __future__ import annotations

import re

from ratchet.components.piece import each, piece
from ratchet.components.types import Prompt, Trajectory

ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


@piece(writes=("reward.class_label", "reward.class_label.status"), paper="arXiv:2503.16188", gold=True)
@each
def class_label(prompt: Prompt, trajectory: Trajectory) -> float:
    """1 if the text inside the first answer tag, or the whole text if there is none, equals `prompt.answer`
    without case and surrounding whitespace, else 0 (accuracy reward of CLS-RL). A prompt without an answer is
    a failed reward, not 0.
    """
    found = ANSWER.search(trajectory.text)
    return float(_known(prompt).casefold() == (found[1] if found else trajectory.text).strip().casefold())


@piece(
    writes=("reward.bare_class_label", "reward.bare_class_label.status"), paper="arXiv:2503.16188", gold=True
)
@each
def bare_class_label(prompt: Prompt, trajectory: Trajectory) -> float:
    """1 if the whole text equals `prompt.answer`, else 0: a thought, a tag, a space or another case gets
    nothing (the only reward of No-Thinking-RL). A prompt without an answer is a failed reward, not 0.
    """
    return float(_known(prompt) == trajectory.text)


def _known(prompt: Prompt) -> str:
    if prompt.answer is None:
        raise ValueError(f"prompt {prompt.id!r} has no answer to compare with")
    return prompt.answer.strip()
