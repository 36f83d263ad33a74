"""Judged steps: one wrong step in each task, demonstrations that are right as often as declared."""

from __future__ import annotations

import re

import pytest

from ratchet.components.errors import DataError
from ratchet.components.pieces.rewards.verdict import verdict_of
from ratchet.components.pieces.testbeds.judged_steps import Step, check, judged_steps


def steps_of(prompt: str) -> list[Step]:
    found = re.findall(r"([a-d])(\d)\+(\d)=(\d)", prompt)
    return [Step(label, *map(int, numbers)) for label, *numbers in found]


def test_one_step_of_one_answer_is_wrong_and_the_next_goes_on_with_its_result() -> None:
    rows = list(judged_steps(size=500, seed=1))
    assert len({row["prompt"][0]["content"] for row in rows}) == 500
    for row in rows:
        a, b, c, d = steps = steps_of(row["prompt"][0]["content"])
        wrong = [step for step in steps if step.first + step.second != step.claimed]
        assert [step.label for step in wrong] == [row["meta"]["wrong"]] and wrong[0].other == row["answer"]
        assert b.first == a.claimed and d.first == c.claimed
        assert sorted((a.first, a.second, b.second)) == sorted((c.first, c.second, d.second))
        assert "".join(step.label for step in steps) == "abcd"
    assert {row["meta"]["wrong"] for row in rows} == set("abcd")


def test_a_passage_names_the_other_answer_where_the_step_is_wrong() -> None:
    assert check(Step("b", 4, 5, 8), 9) == "b4+5=8?9:B." and check(Step("b", 4, 5, 9), 9) == "b4+5=9?9:-."
    assert check(Step("d", 4, 5, 8), 9) == "d4+5=8?9:A."


def test_the_verdict_is_that_of_the_last_check() -> None:
    for row in judged_steps(size=300, seed=2):
        text, steps = row["completion"][0]["content"], steps_of(row["prompt"][0]["content"])
        *_, last = passages = text.removesuffix(text[-4:]).split("Oh,")
        assert 1 <= len(passages) <= 4 and text[-4:-1] == "So "
        for passage in passages:
            step = next(step for step in steps if step.label == passage[0])
            assert passage == check(step, step.first + step.second)
        if last[-2] != "-":
            assert last[-2] == verdict_of(text) == row["answer"]


@pytest.mark.parametrize("passages", [1, 5])
def test_the_demonstrations_are_right_as_often_for_any_number_of_checks(passages: int) -> None:
    """A quarter of the last checks finds the wrong step; half of the rest guess right: 1/4 + 3/8."""
    rows = list(judged_steps(size=4000, seed=3, passages=passages))
    right = [verdict_of(row["completion"][0]["content"]) == row["answer"] for row in rows]
    assert sum(right) / 4000 == pytest.approx(0.625, abs=0.025)


def test_checks_that_kept_what_they_found_would_be_right_more_often() -> None:
    """1 - (3/4)^4 / 2 = 0.842 with four checks; where nothing is found, half of the guesses are right."""
    kept = []
    for row in judged_steps(size=4000, seed=4):
        passages = row["completion"][0]["content"].split("Oh,")
        if len(passages) == 4:
            kept.append(0.5 if all(":-" in passage for passage in passages) else 1.0)
    assert sum(kept) / len(kept) == pytest.approx(0.842, abs=0.03)


def test_misread_sums_are_one_or_two_off() -> None:
    rows = list(judged_steps(size=2000, seed=5, passages=1, misread=0.3))
    read = [tuple(map(int, row["completion"][0]["content"][1:8:2])) for row in rows]
    off = [abs(found - first - second) for first, second, _, found in read]
    assert set(off) == {0, 1, 2} and sum(map(bool, off)) / 2000 == pytest.approx(0.3, abs=0.035)


def test_more_rows_than_there_are_prompts_are_refused() -> None:
    with pytest.raises(DataError, match="at most 6000, got 6001"):
        next(judged_steps(size=6001))
    assert len(list(judged_steps(size=6000))) == 6000
