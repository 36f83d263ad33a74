"""Countable traits of an answer to an instruction, the features of a linear reward model."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ratchet.components.data.instructions import checkers
from ratchet.components.data.instructions.families import FAMILIES


def traits(text: str, instruction: Mapping[str, Any], ended: bool) -> list[float]:
    """27 traits of an answer, some of them relative to the numbers and phrases of its instruction."""
    words, params = checkers.words(text), instruction["params"]
    number = next((value for value in params.values() if isinstance(value, int)), 0)
    phrases = [value for value in params.values() if isinstance(value, str)]
    sentences, bullets = checkers.sentences(text), len(checkers.BULLET.findall(text))
    return [
        ended,
        math.log1p(len(words)),
        len(set(words)) / max(len(words), 1),
        len(words) >= number,
        len(words) <= number,
        sentences == number,
        sentences <= number,
        bullets == number,
        bullets > 0,
        "," in text,
        any(letter.isdigit() for letter in text),
        text.islower(),
        text.isupper(),
        checkers.quoted(text),
        checkers.has_title(text),
        checkers.highlighted(text),
        checkers.has_postscript(text),
        checkers.has_placeholder(text),
        "******" in text,
        checkers.is_json(text),
        checkers.last_mark(text) == "?",
        bool(re.search(r"\n\s*\n", text)),
        sum(checkers.count(text, phrase) > 0 for phrase in phrases),
        sum(text.lower().count(phrase.lower()) >= max(number, 1) for phrase in phrases),
        any(checkers.begins(text, phrase) for phrase in phrases),
        any(checkers.ends(text, phrase) for phrase in phrases),
        sum(word in words for word in checkers.words(instruction["text"])) / max(len(words), 1),
    ]


def features(plain: np.ndarray, families: Sequence[str]) -> np.ndarray:
    """Standardised traits (N, F), alone and times the one-hot family of the instruction, (N, F + F x
    families): a linear model must learn which trait which family asks for.
    """
    plain = (plain - plain.mean(0)) / np.maximum(plain.std(0), 0.05)
    family = np.array([list(FAMILIES).index(name) for name in families])
    crossed = np.zeros((len(plain), len(FAMILIES), plain.shape[1]))
    crossed[np.arange(len(plain)), family] = plain
    return np.concatenate([plain, crossed.reshape(len(plain), -1)], axis=1)
