"""Testbed `languages`: an exact translation, and the stated share of the data."""

from __future__ import annotations

from collections import Counter

import pytest

from ratchet.components.errors import DataError
from ratchet.components.pieces.rewards.sentiment import NEGATIVE, POSITIVE, score
from ratchet.components.pieces.testbeds.languages import ORDER, REPLIES, WORDS, languages, translate


def test_language_n_has_the_word_n_minus_one_places_further() -> None:
    a, b, c, d = ORDER[:4]
    assert translate(f"{a} {b}, x {a}?", 1, 1) == f"{a} {b}, x {a}?"
    assert translate(f"{a} {b}, x {a}?", 1, 2) == f"{b} {c}, x {b}?"
    assert translate(f"{b} {c}, x {b}?", 2, 1) == f"{a} {b}, x {a}?"
    assert translate(f"{a} {b}!", 2, 4) == f"{c} {d}!"
    assert translate(ORDER[-1], 1, 2) == a, "the last word is followed by the first"


def test_language_3_has_the_words_in_reverse_order_between_the_same_marks() -> None:
    a, b, c, d = ORDER[:4]
    assert translate(f"{a} {b}, zz?", 1, 3) == f"zz {d}, {c}?"
    assert translate(f"zz {d}, {c}?", 3, 1) == f"{a} {b}, zz?"


@pytest.mark.parametrize("language", [1, 2, 3, 4, 40])
def test_translation_loses_nothing_and_leaves_no_word_its_meaning(language: int) -> None:
    assert len(set(WORDS)) == len(ORDER) and set(ORDER) == set(WORDS) >= POSITIVE | NEGATIVE
    for text in [*REPLIES, "yes no; unknown Words 12"]:
        there = translate(text, 1, language)
        assert translate(there, language, 1) == text
        assert translate(there, language, 2) == translate(text, 1, 2)
    kept = [word for word in WORDS if translate(word, 1, language) == word]
    assert kept == (WORDS if language == 1 else [])


def counts(**options: float) -> Counter:
    return Counter(row["split"] for row in languages(**options))


def test_a_language_has_its_share_of_the_demonstrations_and_of_the_prompts_to_be_ranked() -> None:
    everything = {"sft": 960, "ranked": 320, "held_out": 60, "test": 96, "unlabelled": 240}
    assert counts() == everything
    assert counts(share=0.3) == everything | {"sft": 288, "ranked": 96, "held_out": 18}
    assert counts(share=0.05, size=7) == {"sft": 48, "ranked": 16, "held_out": 3, "test": 96, "unlabelled": 7}
    with pytest.raises(DataError, match="of 2760; lower the size"):
        next(languages(size=1325))


def test_languages_have_the_same_rows_and_small_shares_the_first_of_them() -> None:
    def english(language: int, share: float) -> dict[str, tuple]:
        return {
            row["id"]: tuple(
                translate(row[column][0]["content"], language, 1)
                for column in ("prompt", "completion")
                if column in row
            )
            for row in languages(seed=4, language=language, share=share)
        }

    first, third = english(1, 1.0), english(3, 0.3)
    assert third.items() <= first.items() and len(first) == 1676 and len(third) == 738
    assert len({texts[0] for texts in first.values()}) == 1676, "each prompt occurs once"
    assert {row["meta"]["language"] for row in languages(language=3)} == {3}


def test_demonstrations_are_two_sentences_of_every_sentiment() -> None:
    replies = [row["completion"][0]["content"] for row in languages() if row["split"] == "sft"]
    scores = [score(text) for text in replies]
    assert {text.count(".") + text.count("!") + text.count("?") for text in replies} == {2}
    assert min(scores) < 0.2 and max(scores) > 0.9 and 0.45 < sum(scores) / 960 < 0.7
