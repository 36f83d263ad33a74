"""A critic that gives feedback in words, and how well an answer incorporates it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from ratchet.components.data.tiny_language import SUBJECTS
from ratchet.components.piece import each, piece
from ratchet.components.pieces.rewards.sentiment import score
from ratchet.components.types import Prompt, Trajectory


def subject(question: str) -> str:
    """The subject of a question of `tiny_openers`, the longest one named; "" without any.

    >>> subject("is there snow today?"), subject("say something of the sea")
    ('snow', 'the sea')
    """
    named = [one for one in SUBJECTS if re.search(rf"\b{one}\b", question.lower())]
    return max(named, key=len, default="")


CHECKS: Mapping[str, Callable[[str, str], bool]] = {
    "Be kind.": lambda question, text: score(text) > 0.7,
    "Ask back.": lambda question, text: text.rstrip().endswith("?"),
    "Name the topic.": lambda question, text: bool(subject(question)) and subject(question) in text.lower(),
}
"""Feedback in words -> whether an answer to a question has what it asks for."""


def feedback_to(question: str, text: str) -> str:
    """What the critic says of an answer: the first of `CHECKS` that it fails; "" if it fails none.

    >>> feedback_to("who likes tea?", "Why?"), feedback_to("who likes tea?", "Yes, I like it a lot!")
    ('Be kind.', 'Ask back.')
    """
    return next((words for words, check in CHECKS.items() if not check(question, text)), "")


@piece(writes=("reward.critique", "reward.critique.status"), paper="arXiv:2303.16755")
@each
def critique(prompt: Prompt, trajectory: Trajectory) -> float:
    """Share of the three things that the critic looks for: a kind answer (more good words than bad ones, a
    sentiment of 0.73 or more), a question at its end, the subject of the prompt's last message.
    """
    question = prompt.messages[-1]["content"]
    return sum(check(question, trajectory.text) for check in CHECKS.values()) / len(CHECKS)


@piece(writes=("reward.incorporated", "reward.incorporated.status"), paper="arXiv:2303.16755")
@each
def incorporated(prompt: Prompt, trajectory: Trajectory) -> float:
    """1 if a refinement has what the feedback asked for, `meta["feedback"]` of the trajectory, else 0; 1
    without feedback. It stands for InstructRM, a language model's answer to "does the new text incorporate
    the feedback?".
    """
    words = str(trajectory.meta.get("feedback", ""))
    return float(not words or CHECKS[words](prompt.messages[-1]["content"], trajectory.text))
