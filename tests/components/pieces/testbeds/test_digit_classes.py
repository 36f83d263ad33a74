"""Digit classes: halves, orders, disjoint images, misnamed and bare demonstrations."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import pytest

from ratchet.components.errors import DataError
from ratchet.components.pieces.testbeds.digit_classes import digit_classes, ink
from ratchet.components.pieces.testbeds.digit_images import WORDS, images

Row = dict[str, Any]


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return list(digit_classes(demonstrations=1000, misnamed=0.2, seed=3))


def read(row: Row) -> tuple[str, list[str]]:
    """Codes of the image, and the classes to choose from."""
    found = re.fullmatch(r"([A-P]{16}) Which of (\w+(?:, \w+){4})\?", row["prompt"][0]["content"])
    assert found
    return found[1], found[2].split(", ")


def of(rows: list[Row], split: str) -> list[Row]:
    return [row for row in rows if row["split"] == split]


def test_no_image_is_in_two_splits_and_each_is_of_its_class(rows: list[Row]) -> None:
    truth = dict(images())
    splits = [{read(row)[0] for row in of(rows, split)} for split in ("pretrain", "few", "test")]
    assert [len(one) for one in splits] == [1000, 20, 200] and len(set.union(*splits)) == 1220
    for row in rows:
        codes, classes = read(row)
        assert WORDS[truth[codes]] in classes and len(set(classes)) == 5
        assert row["split"] == "pretrain" or row["answer"] == WORDS[truth[codes]]


def test_labelled_images_are_of_the_base_classes_in_different_orders(rows: list[Row]) -> None:
    few = of(rows, "few")
    assert all(set(read(row)[1]) == set(WORDS[:5]) and row["meta"]["half"] == "base" for row in few)
    assert set(Counter(row["answer"] for row in few).values()) == {4 * 16} and len(few) == 320
    assert len({row["prompt"][0]["content"] for row in few}) == 320
    assert all(row["completion"][0]["content"] == row["answer"] for row in few)
    places = Counter(read(row)[1].index(row["answer"]) for row in few)
    assert all(count / 320 == pytest.approx(0.2, abs=0.08) for count in places.values())


def test_a_half_of_the_test_is_of_other_classes_among_each_other(rows: list[Row]) -> None:
    halves = Counter((row["meta"]["half"], row["answer"]) for row in of(rows, "test"))
    assert halves == {("base" if i < 5 else "new", word): 20 for i, word in enumerate(WORDS)}
    for row in of(rows, "test"):
        assert set(read(row)[1]) == set(WORDS[:5] if row["meta"]["half"] == "base" else WORDS[5:])


def test_demonstrations_are_misnamed_and_bare_as_declared(rows: list[Row]) -> None:
    truth, wrong, bare = dict(images()), 0, 0
    for row in of(rows, "pretrain"):
        codes, classes = read(row)
        text = row["completion"][0]["content"]
        found = re.fullmatch(r"<think>(\d) (\d)</think><answer>(\w+)</answer>", text)
        if found:
            assert (int(found[1]), int(found[2])) == ink(codes)
        word = found[3] if found else text
        assert word in classes
        bare, wrong = bare + (not found), wrong + (word != WORDS[truth[codes]])
    assert bare / 1000 == pytest.approx(0.3, abs=0.05) and wrong / 1000 == pytest.approx(0.2, abs=0.05)


def test_ink_counts_quarters_of_a_half() -> None:
    """Upper half: 8 full patches, 32 pixels. Lower half: G has two pixels, four of them 8, with B 9."""
    assert ink("P" * 8 + "GGGGBAAA") == (8, 2)


def test_too_many_images_of_a_digit_are_refused() -> None:
    with pytest.raises(DataError, match=r"at most 1\d\d images of a digit, got 174: 4 shots"):
        next(digit_classes(demonstrations=1500))
