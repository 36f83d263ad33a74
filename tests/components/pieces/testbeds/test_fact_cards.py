"""Fact cards: the splits, the share of right digits, and the spurious length of the pairs."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from ratchet.components.pieces.testbeds.fact_cards import fact_cards


def parts(text: str) -> tuple[str, int]:
    """Digits and number of fillers."""
    found = re.fullmatch(r"a(\d)b(\d)c(\d)d(\d)((?: thank you)*)", text)
    assert found
    return "".join(found.groups()[:4]), found[5].count("thank")


def rows_of(split: str, **options: object) -> list[dict]:
    return [row for row in fact_cards(**options) if row["split"] == split]  # type: ignore[arg-type]


def number(row: dict) -> str:
    return re.findall(r"Card (\d+), day \d+\?", row["prompt"][0]["content"])[0]


def test_every_split_has_its_size_and_every_day_occurs_once() -> None:
    rows = list(fact_cards(size=50, pairs=40, held_out=10))
    assert Counter(row["split"] for row in rows) == {
        "sft": 50,
        "pairs": 40,
        "held_out": 10,
        "unlabelled": 800,
        "test": 10,
    }
    days = [row["prompt"][0]["content"].split()[-1] for row in rows]
    assert len(set(days)) == len(rows) == len({row["id"] for row in rows})


def test_a_chosen_answer_is_right_and_usually_longer_and_a_rejected_one_is_wrong() -> None:
    facts = {number(row): row["answer"] for row in fact_cards(seed=1) if "answer" in row}
    pairs = rows_of("pairs", seed=1, pairs=2000)
    longer = 0
    for row in pairs:
        (good, more), (bad, fewer) = (parts(row[side][0]["content"]) for side in ("chosen", "rejected"))
        assert good == facts[number(row)] != bad and more != fewer and max(more, fewer) <= 4
        longer += more > fewer
    assert longer / 2000 == pytest.approx(0.8, abs=0.03)
    held_out = rows_of("held_out", seed=1, held_out=2000)
    more = [len(row["chosen"][0]["content"]) > len(row["rejected"][0]["content"]) for row in held_out]
    assert sum(more) / 2000 == pytest.approx(0.5, abs=0.035)


def test_demonstrations_are_right_as_often_as_declared_and_of_any_length() -> None:
    """A digit is right with probability 0.5, or by chance: 0.5 + 0.5 / 10."""
    facts = {number(row): row["answer"] for row in fact_cards(seed=2) if "answer" in row}
    rows = [
        (number(row), *parts(row["completion"][0]["content"])) for row in rows_of("sft", seed=2, size=2000)
    ]
    right = [a == b for card, digits, _ in rows for a, b in zip(digits, facts[card], strict=True)]
    assert sum(right) / 8000 == pytest.approx(0.55, abs=0.02)
    counts = Counter(fillers for *_, fillers in rows)
    assert set(counts) == {0, 1, 2, 3, 4} and min(counts.values()) > 330
