"""Judge tasks: one right answer, judgements that err as declared."""

from __future__ import annotations

import re
from itertools import product

import pytest

from ratchet.components.errors import DataError
from ratchet.components.pieces.rewards.judgement import picks, scores_of
from ratchet.components.pieces.testbeds.judge_tasks import judge_tasks, judgement


def traits(sentence: str) -> tuple[str, str]:
    """Last word and last mark of a sentence."""
    *_, word, mark = re.findall(r"\w+|[.?]", sentence)
    return word, mark


@pytest.mark.parametrize("answers", [2, 3])
def test_one_answer_has_the_subject_and_the_kind_of_sentence_asked_for(answers: int) -> None:
    rows = list(judge_tasks(size=300, seed=1, answers=answers))
    assert len({row["prompt"][0]["content"] for row in rows}) == 300
    assert {row["answer"] for row in rows} == set("ABC"[:answers])
    for row in rows:
        request, *texts = re.split(r" [A-C]: ", row["prompt"][0]["content"])
        wanted = (traits(request)[0], "?" if request.startswith("Ask") else ".")
        right = ["ABC"[i] for i, text in enumerate(texts) if traits(text) == wanted]
        assert right == [row["answer"]] and len(texts) == row["meta"]["answers"] == answers


def test_without_misreading_every_judgement_puts_the_right_answer_first() -> None:
    for row in judge_tasks(size=200, seed=2, answers=3, misread=0.0):
        scores = scores_of(row["completion"][0]["content"], 3)
        assert scores and scores[row["answer"]] == 9 and picks(scores, row["answer"])


def chance(misread: float) -> float:
    """Share of right judgements of two answers: over the 16 patterns of misreading and the three ways in
    which the other answer can lack what is wanted, the right one keeps more than the other seems to.
    """
    total = 0.0
    for lacks in ((1, 0), (0, 1), (1, 1)):
        for wrong in product((0, 1), repeat=4):
            weight = misread ** sum(wrong) * (1 - misread) ** (4 - sum(wrong)) / 3
            right = 2 - wrong[0] - wrong[1]
            other = sum(lack == read for lack, read in zip(lacks, wrong[2:], strict=True))
            total += weight * (right > other)
    return total


def test_the_declared_share_of_judgements_is_right() -> None:
    assert chance(0.0) == 1.0 and chance(0.17) == pytest.approx(0.709, abs=0.0005)
    rows = list(judge_tasks(size=3000, seed=3))
    right = [picks(scores_of(row["completion"][0]["content"], 2) or {}, row["answer"]) for row in rows]
    assert sum(right) / 3000 == pytest.approx(chance(0.17), abs=0.025)


def test_scores_follow_from_what_is_found() -> None:
    found = [("rain", "."), ("dogs", "."), ("rain", "?")]
    assert judgement(("rain", "?"), found) == "About rain? A: rain. 5. B: dogs. 1. C: rain? 9."


def test_other_numbers_of_answers_and_too_many_tasks_are_refused() -> None:
    for answers, size in ((1, 8), (4, 8), (2, 3001)):
        with pytest.raises(DataError, match=f"two or three answers .* got {answers} and {size}"):
            next(judge_tasks(answers=answers, size=size))
