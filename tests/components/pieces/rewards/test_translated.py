"""Reward `translated`: sentiment in the language of the answer, by hand, and the effect of wrong words."""

from __future__ import annotations

import pytest

from ratchet.components.errors import DataError
from ratchet.components.piece import build
from ratchet.components.pieces.testbeds.languages import translate
from ratchet.components.types import Context, Group, Prompt, Trajectory


def rewards(texts: list[str], language: object, error: float = 0.0, seed: int = 0, name: str = "p") -> list:
    rows = tuple(Trajectory(({"role": "assistant", "content": text},)) for text in texts)
    piece = build("annotate", {"name": "rewards.translated", "error": error})
    group = Group(Prompt(name, (), meta={"language": language}), rows)
    columns = piece([group], Context(seed=seed))
    assert columns["reward.translated.status"] == [["ok"] * len(texts)]
    return columns["reward.translated"][0]


def test_sentiment_is_that_of_the_exact_translation() -> None:
    """sigmoid of positive less negative words: "love" and "good" 2, "hate" -1, "tea" 0."""
    english, expected = ["i love good tea.", "i hate tea.", "tea"], [0.8808, 0.2689, 0.5]
    assert rewards(english, 1) == pytest.approx(expected, abs=1e-4)
    for language in (2, 3, 5):
        foreign = [translate(text, 1, language) for text in english]
        assert rewards(foreign, language) == pytest.approx(expected, abs=1e-4)
        assert rewards(foreign, 1) != pytest.approx(expected, abs=1e-4)


def test_a_share_of_the_words_is_read_as_any_word() -> None:
    """A lone "love" scores sigmoid(1) and is kept or drawn again, to one of 11 positive, 5 negative and 53
    other words of 69: with `error` e it keeps that score with probability 1 - e (1 - 11/69).
    """
    for error in (0.15, 0.6, 1.0):
        drawn = rewards([translate("love", 1, 3)] * 3000, 3, error)
        kept = [value == pytest.approx(0.7311, abs=1e-4) for value in drawn]
        assert sum(kept) / 3000 == pytest.approx(1 - error * (1 - 11 / 69), abs=0.03)


def test_errors_depend_on_seed_prompt_and_answer_alone() -> None:
    texts = [translate("love good nice great glad", 1, 2)] * 12
    one = rewards(texts, 2, 0.5)
    assert one == rewards(texts, 2, 0.5) and len(set(one)) > 1
    assert one != rewards(texts, 2, 0.5, seed=1) and one != rewards(texts, 2, 0.5, name="q")


@pytest.mark.parametrize("language", [None, "2"])
def test_a_prompt_without_a_language_is_refused(language: object) -> None:
    with pytest.raises(DataError, match=r"prompt 'p': expected meta\.language"):
        rewards(["love"], language)
