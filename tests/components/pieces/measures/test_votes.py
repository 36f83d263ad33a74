"""Judgements: the rule reward, and accuracy by the sum of several judgements."""

from __future__ import annotations

import pytest

from ratchet.components.errors import DataError
from ratchet.components.piece import build
from ratchet.components.pieces.rewards.judgement import judgement, scores_of
from ratchet.components.types import Context, Group, Prompt, Trajectory


def group(*texts: str, answer: str | None = "B", answers: object = 2) -> Group:
    rows = tuple(Trajectory(({"role": "assistant", "content": text},)) for text in texts)
    return Group(Prompt("p", ({"role": "user", "content": "q"},), answer, meta={"answers": answers}), rows)


def voted(k: int | None, *texts: str, name: str = "votes", **options: object) -> float:
    (row,) = build("measure", {"name": name, "k": k})([group(*texts, **options)], Context())  # type: ignore[arg-type]
    assert len(row) == len(texts) and len(set(row)) == 1
    return row[0]


def test_the_reward_is_1_for_the_strictly_highest_score_else_minus_1() -> None:
    texts = {
        "About rain? A: rain. 5. B: rain? 9.": 1.0,
        "A: 9. B: 5.": -1.0,
        "A: 5. B: 5.": -1.0,  # a tie
        "B: 9.": -1.0,  # no score for A
        "A: 0. B: 9.": -1.0,
        "A: 1. B: 11.": -1.0,
        "A: 1. B: 9. C: 1.": -1.0,  # there is no C
        "A: 9. B: 1. so A: 1. B: 9.": 1.0,  # the last scores count
        "": -1.0,
    }
    assert judgement([group(*texts)], Context())["reward.judgement"] == [list(texts.values())]
    assert scores_of("A: 10. B: 1.", 2) == {"A": 10, "B": 1}


def test_a_task_without_its_right_answer_is_a_failed_reward() -> None:
    for task in (
        group("A: 1. B: 2.", answer=None),
        group("A: 1. B: 2.", answers=None),
        group("A: 1. B: 2.", answer="C"),
        group("x", answer="AB"),
    ):
        found = judgement([task], Context())
        assert found["reward.judgement"] == [[None]]
        assert found["reward.judgement.status"][0][0].startswith("failed: ValueError: prompt 'p' needs")


RIGHT, NEARLY, WRONG, NONE = "A: 1. B: 9.", "A: 5. B: 5.", "A: 5. B: 1.", "?"


def test_scores_are_added_before_the_highest_is_taken() -> None:
    """Sums of A and B: 6 and 10, though only one of the two judgements is right; a majority would be a tie.
    Of the three pairs below, (RIGHT, NEARLY) 6 to 14 and (RIGHT, WRONG) 6 to 10 are right.
    """
    assert voted(2, RIGHT, WRONG) == 1.0 and voted(1, RIGHT, WRONG) == 0.5
    assert voted(2, RIGHT, NEARLY, WRONG) == pytest.approx(2 / 3)
    assert voted(3, RIGHT, NEARLY, WRONG) == voted(None, RIGHT, NEARLY, WRONG) == 1.0, "11 to 15"
    assert voted(2, RIGHT, "A: 9. B: 1.") == 0.0, "a tie of sums"


def test_unreadable_judgements_have_no_vote() -> None:
    assert voted(2, RIGHT, NONE) == 1.0 and voted(2, NONE, NONE) == 0.0


def test_gained_is_the_difference_to_one_judgement() -> None:
    assert voted(3, RIGHT, NEARLY, WRONG, name="votes.gained") == pytest.approx(1 - 1 / 3)


def test_many_subsets_are_replaced_by_disjoint_ones() -> None:
    """Of 20 judgements there are 184,756 subsets of ten, and two disjoint ones: the first right, the second
    wrong.
    """
    assert voted(10, *[RIGHT] * 10, *[WRONG] * 10) == 0.5


def test_fewer_judgements_than_k_are_an_error() -> None:
    with pytest.raises(DataError, match=r"'p' has 2 judgements, but k is 3; raise evaluate"):
        voted(3, RIGHT, WRONG)
