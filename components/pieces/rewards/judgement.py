"""Reward of a judge: whether its judgement gives the right answer the highest score."""

from __future__ import annotations

import re
from string import ascii_uppercase

from ratchet.components.piece import each, piece
from ratchet.components.types import Prompt, Trajectory

SCORE = re.compile(r"\b([A-Z]):[^:]*? (\d+)\b")


def scores_of(text: str, answers: int) -> dict[str, int] | None:
    """Score of each lettered answer in a judgement: the first number of the last text after its letter and
    a colon. None unless all `answers` answers have one, no other letter does, and all scores are 1 to 10.

    >>> scores_of("A: rain. 5. B: rain? 9.", 2), scores_of("A: 5.", 2), scores_of("A: 5. B: 11.", 2)
    ({'A': 5, 'B': 9}, None, None)
    """
    found = {letter: int(score) for letter, score in SCORE.findall(text)}
    complete = set(found) == set(ascii_uppercase[:answers])
    return found if complete and all(1 <= score <= 10 for score in found.values()) else None


def picks(totals: dict[str, int], answer: str) -> bool:
    """Whether `answer` has a higher total than every other: a tie is wrong."""
    return all(totals[answer] > total for letter, total in totals.items() if letter != answer)


def task_of(prompt: Prompt) -> tuple[str, int]:
    """Letter of the right answer and number of answers. `ValueError` without them."""
    count = prompt.meta.get("answers")
    if not isinstance(count, int) or prompt.answer not in [*ascii_uppercase[:count]]:
        raise ValueError(
            f"prompt {prompt.id!r} needs the letter of the right answer as its answer and the number of "
            f"answers in meta['answers'], got {prompt.answer!r} and {count!r}; use the testbed `judge_tasks`"
        )
    return prompt.answer, count


@piece(writes=("reward.judgement", "reward.judgement.status"), paper="arXiv:2504.02495")
@each
def judgement(prompt: Prompt, trajectory: Trajectory) -> float:
    """1 if the right answer, `prompt.answer`, has a strictly higher score than each other answer (the rule of
    SPCT's online RL), else -1: for a tie, a higher score of another, a score out of 1 to 10 or none. A
    judgement has a part for each lettered answer, with its score: "A: rain. 5. B: rain? 9."; the rest is
    free.
    """
    answer, count = task_of(prompt)
    scores = scores_of(trajectory.text, count)
    return 1.0 if scores and picks(scores, answer) else -1.0
