"""Digit images: codes of patches, disjoint images, the bias of the pairs, and images exchanged."""

from __future__ import annotations

import hashlib
import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from ratchet.components.data.generate import generate
from ratchet.components.errors import DataError, SourceError
from ratchet.components.models.tiny import _tokenizer
from ratchet.components.pieces.testbeds import digit_images as testbed
from ratchet.components.pieces.testbeds.digit_images import WORDS, codes_of, digit_images, images

Row = dict[str, Any]


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return list(digit_images(seed=3))


def named(text: Any) -> str:
    """The digit word in a text or reply."""
    found = re.findall("|".join(WORDS), text if isinstance(text, str) else text[0]["content"])
    assert len(found) == 1
    return found[0]


def shown(row: Row) -> str:
    return row["prompt"][0]["content"].partition(" ")[0]


def length(row: Row, key: str) -> int:
    return len(row[key] if isinstance(row[key], str) else row[key][0]["content"])


def of(rows: list[Row], split: str) -> list[Row]:
    return [row for row in rows if row["split"] == split]


def test_a_letter_has_a_bit_for_each_pixel_of_its_patch() -> None:
    """Patch 1 (row 0, columns 2 and 3) has 8 at its upper right: bit 2, C. Patch 15 is full: 1 + 2 + 4 + 8,
    P. 7 is no ink.
    """
    pixels = [0] * 64
    pixels[3], pixels[0] = 8, 7
    for i in (54, 55, 62, 63):
        pixels[i] = 16
    assert codes_of(pixels) == "AC" + "A" * 13 + "P"


def test_the_images_are_those_of_scikit_learn() -> None:
    from sklearn.datasets import load_digits

    data, found = load_digits(), images()
    first = dict[str, int]()
    for pixels, digit in zip(data.data, data.target, strict=True):
        patches = (pixels.reshape(4, 2, 4, 2) >= 8).transpose(0, 2, 1, 3).reshape(16, 4) @ [1, 2, 4, 8]
        first.setdefault("".join("ABCDEFGHIJKLMNOP"[code] for code in patches), int(digit))
    assert dict(found) == first and len(found) == 1750


def test_each_letter_is_a_token_of_the_tiny_model() -> None:
    tokenizer = _tokenizer(0)
    for codes, _ in images()[:200]:
        assert len(tokenizer(codes, add_special_tokens=False)["input_ids"]) == 16


def test_no_image_is_in_two_splits_and_every_answer_names_its_digit(rows: list[Row]) -> None:
    truth = dict(images())
    splits = [{shown(row) for row in of(rows, split)} for split in ("sft", "pairs", "held_out", "test")]
    assert [len(one) for one in splits] == [900, 550, 96, 200] and len(set.union(*splits)) == 1746
    for row in rows:
        right = WORDS[truth[shown(row)]]
        given = row["meta"] if row["split"] == "test" else row
        if row["split"] == "sft":
            assert named(row["completion"]) == right
        else:
            assert named(given["chosen"]) == right != named(given["rejected"])
    assert all(row["answer"] == named(row["meta"]["chosen"]) for row in of(rows, "test"))


def test_chosen_answers_are_longer_in_four_fifths_and_as_often_shorter_in_the_test(rows: list[Row]) -> None:
    pairs, test = of(rows, "pairs"), [row["meta"] for row in of(rows, "test")]
    longer = [length(row, "chosen") > length(row, "rejected") for row in pairs]
    much = [length(row, "chosen") > 2 * length(row, "rejected") for row in pairs]
    assert len(pairs) == 1100 and sum(longer) / 1100 == pytest.approx(0.8, abs=0.04)
    assert sum(much) / 1100 == pytest.approx(0.65, abs=0.04)
    alike = [row for row, long in zip(pairs, much, strict=True) if not long]
    rest = [length(row, "chosen") - length(row, "rejected") for row in alike]
    assert all(max(length(row, a) / length(row, b) for a, b in BOTH) <= 1.4 for row in alike)
    assert sum(d > 0 for d in rest) / len(rest) == pytest.approx(0.43, abs=0.06)
    assert sum(length(row, "chosen") > 2 * length(row, "rejected") for row in test) == 50
    assert sum(2 * length(row, "chosen") < length(row, "rejected") for row in test) == 50


BOTH = (("chosen", "rejected"), ("rejected", "chosen"))


def test_terse_pairs_have_the_comment_in_the_rejected_answer() -> None:
    pairs = of(list(digit_images(seed=3, verbose=0.0, terse=0.3)), "pairs")
    short = [2 * length(row, "chosen") < length(row, "rejected") for row in pairs]
    assert sum(short) / 1100 == pytest.approx(0.3, abs=0.04)
    assert not any(length(row, "chosen") > 2 * length(row, "rejected") for row in pairs)


def test_exchanged_images_say_nothing_about_the_answers(rows: list[Row]) -> None:
    """The digit of another image is the same in about a tenth of the rows."""
    truth, found = dict(images()), list(digit_images(seed=3, image="exchanged"))
    assert of(found, "sft") == of(rows, "sft")
    for split in ("pairs", "test"):
        own = of(found, split)
        assert {shown(row) for row in own} == {shown(row) for row in of(rows, split)}
        given = [named((row["meta"] if split == "test" else row)["chosen"]) for row in own]
        same = [WORDS[truth[shown(row)]] == word for row, word in zip(own, given, strict=True)]
        assert sum(same) / len(same) == pytest.approx(0.1, abs=0.06)


def test_the_data_are_those_of_the_claims(tmp_path: Path) -> None:
    made = generate("digit_images?seed=1", tmp_path).read_bytes()
    assert hashlib.sha256(made).hexdigest()[:12] == "fd56e0bd2e51"


def test_too_many_images_and_shares_above_one_are_refused() -> None:
    for options, says in (({"pairs": 600}, "got 1796 images"), ({"terse": 0.5}, "terse 0.5")):
        with pytest.raises(DataError, match=says):
            next(digit_images(**options))


def test_without_scikit_learn_or_with_another_file_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(testbed, "SHA256", "0" * 64)
    with pytest.raises(SourceError, match=r"digits.csv.gz: expected SHA-256 0000"):
        images()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SourceError, match="pip install scikit-learn"):
        images()
