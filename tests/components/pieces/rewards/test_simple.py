"""Rewards of text simplification against published numbers and numbers by hand."""

from __future__ import annotations

import pytest

from ratchet.components.piece import build
from ratchet.components.pieces.rewards.simple import grade, sari_score, syllables
from ratchet.components.pieces.testbeds.simplify import SLOTS, sentence
from ratchet.components.types import Context, Group, Message, Prompt, Trajectory

CONCEPTS = [["sire", "father"], ["relinquishes", "gives"], ["beverage", "drink"], ["anon", "tomorrow"]]


def reward(name: str, texts: list[str], answer: str | None = None, **meta) -> list:
    prompt = Prompt(
        "p", (Message(role="user", content="The sire relinquishes the beverage anon."),), answer, meta=meta
    )
    rows = tuple(Trajectory(({"role": "assistant", "content": text},)) for text in texts)
    return list(
        build("annotate", {"name": f"rewards.simple.{name}"})([Group(prompt, rows)], Context())[
            f"reward.{name}"
        ][0]
    )


def test_sari_of_the_documentations_example() -> None:
    """The example of the metric `sari` of Hugging Face evaluate, 26.953601953601954 of 100."""
    references = [
        "About 95 species are currently known.",
        "About 95 species are now accepted.",
        "95 species are now accepted.",
    ]
    found = sari_score("About 95 species are currently accepted.", "About 95 you now get in.", references)
    assert 100 * found == pytest.approx(26.953601953601954)


def test_sari_by_hand() -> None:
    """Source "a b", answer "a b" and reference "a c". n = 1: kept P 1/2, R 1, F1 2/3; nothing deleted, 1; of
    the added, P 1 and R 0, so 0. n = 2: kept P 0 and R 1 (none wanted), so 0; 1; 0. Beyond: all 1.
    """
    expected = (2 / 3 + 1 + 0 + 0 + 1 + 0 + 6) / 12
    assert sari_score("a b", "a b", ["a c"]) == pytest.approx(expected)


def test_the_reference_has_full_reward_and_the_source_has_not() -> None:
    reference = "The father gives the drink tomorrow."
    full, copied = reward("sari", [reference, "The sire relinquishes the beverage anon."], reference)
    assert full == 1.0 and copied < 0.5
    assert reward("sari", [reference]) == [None], "a failed reward without a reference"


def test_meaning_is_the_cosine_of_the_sets_of_concepts() -> None:
    """Four concepts: all named with one word each 1; two of them alone 2/sqrt(8); with four more words
    4/sqrt(32); repetition costs nothing.
    """
    texts = [
        "The father gives the beverage anon.",
        "The father drink.",
        "The father gives the drink tomorrow in the old house today.",
        "father father gives drink drink tomorrow",
        "The.",
    ]
    expected = [1.0, 2 / 8**0.5, 4 / 32**0.5, 1.0, 0.0]
    assert reward("meaning", texts, concepts=CONCEPTS) == pytest.approx(expected)


def test_flesch_kincaid_by_hand() -> None:
    """ "The doctor buys the drink often.": 6 words, 8 syllables, 2.34 + 11.8 x 8/6 - 15.59."""
    assert grade("The doctor buys the drink often.") == pytest.approx(2.34 + 11.8 * 8 / 6 - 15.59)
    assert reward("readability", ["The doctor buys the drink often.", "..."]) == [
        pytest.approx(0.83444, abs=1e-5),
        None,
    ]


def test_the_formula_prefers_plain_words_but_not_the_plain_words_that_are_longer() -> None:
    every = [pair for slot in SLOTS for pair in slot]
    longer = [plain for hard, plain in every if syllables(plain) > syllables(hard)]
    assert longer == ["father", "clothes", "tomorrow", "rarely"]
    choice = tuple(slot[0] for slot in SLOTS)
    assert grade(sentence(choice, plain=True)) < grade(sentence(choice, plain=False))
