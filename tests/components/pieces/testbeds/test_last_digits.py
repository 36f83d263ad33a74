"""Last digits: steps that follow each other, mistakes as often as declared, which alone spoil an answer."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

from ratchet.components.errors import DataError
from ratchet.components.pieces.testbeds.last_digits import last_digits


def steps_of(row: dict[str, Any]) -> list[tuple[int, int, int]]:
    return [
        (int(a), int(b), int(c))
        for a, b, c in re.findall(r"(\d)[+~](\d)=(\d)", row["completion"][0]["content"])
    ]


def test_steps_add_the_terms_in_order_and_are_wrong_where_more_than_one_is_added() -> None:
    rows, hard, wrong = list(last_digits(size=1500, seed=2)), 0, 0
    assert len({row["prompt"][0]["content"] for row in rows}) == 1500
    assert {row["meta"]["terms"] for row in rows} == set(range(2, 9))
    sizes = Counter(row["split"] for row in rows)
    assert sizes == {"sft": 1126, "prompts": 187, "test": 187}
    assert {row["meta"]["terms"] for row in rows if row["split"] == "test"} == {8}
    for row in rows:
        digits = [int(digit) for digit in re.findall(r"\d", row["prompt"][0]["content"])]
        steps, total, text = steps_of(row), digits[0], row["completion"][0]["content"]
        signs = iter(re.findall(r"[+~]", text))
        labels = "abcdefgh"[: len(digits) - 1]
        assert re.sub(r"\d", "", row["prompt"][0]["content"]) == labels
        assert re.sub(r"[^a-h]", "", row["completion"][0]["content"]) == labels
        assert [step[1] for step in steps] == digits[1:] and len(digits) == row["meta"]["terms"]
        for before, digit, after in steps:
            assert before == total and (after - before - digit) % 10 in ((0, 1) if digit > 1 else (0,))
            assert (next(signs) == "~") == ((before + digit) % 10 != after)
            hard, wrong, total = hard + (digit > 1), wrong + ((before + digit) % 10 != after), after
        assert row["answer"] == str(sum(digits) % 10)
    assert wrong / hard == pytest.approx(0.6, abs=0.03)


def test_sums_are_in_their_base() -> None:
    for row in last_digits(size=1000, seed=4, base=5, slip=0.0):
        digits = [int(digit) for digit in re.findall(r"\d", row["prompt"][0]["content"])]
        assert max(digits) < 5 and [(a + b) % 5 for a, b, _ in steps_of(row)] == [
            c for *_, c in steps_of(row)
        ]
        assert row["answer"] == str(steps_of(row)[-1][2]) == str(sum(digits) % 5)


def test_an_answer_is_right_only_if_all_of_its_steps_are() -> None:
    for row in last_digits(size=1000, seed=3, terms=9, slip=0.9):
        steps = steps_of(row)
        right = all((a + b) % 10 == c for a, b, c in steps)
        assert right == (str(steps[-1][2]) == row["answer"])


@pytest.mark.parametrize("options", [{"terms": 10}, {"terms": 3}, {"base": 3}, {"base": 4, "largest": 4}])
def test_impossible_sums_are_refused(options: dict[str, int]) -> None:
    with pytest.raises(DataError, match="last_digits: expected 4 to 9 terms"):
        next(last_digits(**options))
    with pytest.raises(DataError, match="size of at most 135"):
        next(last_digits(size=136, terms=4))
