"""Testbed `stated_principles`: the deciding principle, held-out combinations, opposites, labels."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from ratchet.components.data.generate import generate
from ratchet.components.data.parsing import parse
from ratchet.components.data.tiny_language import SUBJECTS
from ratchet.components.pieces.testbeds.stated_principles import SCORES, Stated, decision, stated_principles

KIND, NAMED, BRIEF, ASKS = (("kind", False), ("named", False), ("brief", False), ("asks", False))


@pytest.fixture(scope="module")
def rows() -> list[dict[str, Any]]:
    return list(stated_principles(size=2000, seed=3))


def label(row: dict[str, Any]) -> int:
    """1 if the row's principles prefer the answer that it calls chosen, else -1 or 0."""
    asked = row["prompt"][-1]["content"]
    subject = max((one for one in SUBJECTS if one in asked), key=len)
    given = row if "chosen" in row else row["meta"]
    texts = (given[key] if isinstance(given[key], str) else given[key][0]["content"] for key in PAIR)
    return decision(*texts, subject, row["meta"]["principles"])


PAIR = ("chosen", "rejected")


def test_scores_are_those_counted_by_hand() -> None:
    text = "good, nice, I like tea? I love you. I have tea."
    assert {name: score(text, "tea") for name, score in SCORES.items()} == {
        "brief": -3,
        "kind": 2,
        "named": 2,
        "asks": 1,
    }


@pytest.mark.parametrize(
    ("principles", "expected"),
    [
        ((KIND,), 1),
        ((("kind", True),), -1),
        ((NAMED,), -1),
        ((ASKS,), 0),
        ((KIND, NAMED, BRIEF), 1),  # 2, -1, -1: their sum is 0, the largest decides alone
        ((NAMED, BRIEF), -1),
        ((NAMED, ("brief", True)), 0),  # -1, 1: they contradict each other
        ((NAMED, ASKS), -1),
    ],
)
def test_the_largest_difference_decides_alone(principles: Stated, expected: int) -> None:
    """Scores of the first: brief -2, kind 2, named 0, asks 0; of the second: -1, 0, 1, 0."""
    first, second = "good, nice, I like you. I love you.", "I like tea."
    assert decision(first, second, "tea", principles) == expected
    assert decision(second, first, "tea", principles) == -expected


def test_a_tenth_of_the_training_labels_is_wrong_and_none_of_the_test_split(rows: list) -> None:
    labels = {
        split: Counter(label(row) for row in rows if row["split"] == split) for split in ("train", "test")
    }
    assert labels["train"][-1] / 2000 == pytest.approx(0.1, abs=0.03) and not labels["train"][0]
    assert labels["test"] == {1: 192}


def test_combinations_of_the_test_split_are_new_and_their_parts_are_not(rows: list) -> None:
    seen = {
        split: {frozenset(row["meta"]["principles"]) for row in rows if row["split"] == split}
        for split in ("train", "validation", "test")
    }
    assert not seen["test"] & (seen["train"] | seen["validation"])
    assert len(seen["train"]) == 80 - 18 and {len(one) for one in seen["test"]} <= {2, 3, 4}
    assert {frozenset([one]) for principles in seen["test"] for one in principles} <= seen["train"]
    principles = [one for row in rows if row["split"] == "train" for one in row["meta"]["principles"]]
    assert sum(negated for _, negated in principles) / len(principles) == pytest.approx(0.5, abs=0.03)


def test_each_test_row_is_followed_by_its_opposite(rows: list) -> None:
    test = [row for row in rows if row["split"] == "test"]
    for row, other in zip(test[::2], test[1::2], strict=True):
        assert row["prompt"][1] == other["prompt"][1] and row["prompt"][0] != other["prompt"][0]
        assert [row["meta"][key] for key in PAIR] == [other["meta"][key] for key in PAIR[::-1]]
        assert other["meta"]["principles"] == tuple((name, not no) for name, no in row["meta"]["principles"])
    assert not {row["prompt"][1]["content"] for row in test} & {
        row["prompt"][1]["content"] for row in rows if row["split"] != "test"
    }


def test_the_pairs_are_the_same_without_principles(rows: list, tmp_path: Path) -> None:
    hidden = list(stated_principles(size=2000, seed=3, stated=False))
    assert [{**row, "prompt": row["prompt"][1:]} for row in rows] == hidden
    kept = parse(generate("stated_principles?size=20&seed=3", tmp_path)).kept
    assert [record.messages[0]["role"] for record in kept] == ["system"] * (20 + 48 + 192)
    assert "be nice." in {record.messages[0]["content"] for record in kept}
