"""Rewards of short melodies by programs: adherence to the caption, quality, and what users like."""

from __future__ import annotations

import re
from itertools import pairwise

from ratchet.components.errors import DataError
from ratchet.components.piece import each, piece
from ratchet.components.types import Prompt, Trajectory

PITCHES = "CDEFGABcdefgab"
"""Two octaves in ABC notation, from low to high; "C2" is a C of double length."""
KEYS = {"C": "CDEGA", "F": "FGACD", "G": "GABDE"}
"""Pentatonic scales, which need no sharps and flats."""
SHAPES = {"rising": 1, "falling": -1}
STEP, LENGTH = 2, 8
"""Largest smooth move in letters, and the number of notes of a whole melody."""


def notes(text: str) -> list[tuple[int, int]]:
    """(place in `PITCHES`, length 1 or 2) of every note of a text; other characters are passed over.

    >>> notes("C2e !G")
    [(0, 2), (9, 1), (4, 1)]
    """
    return [(PITCHES.index(letter), 2 if long else 1) for letter, long in re.findall(r"([A-Ga-g])(2?)", text)]


def adherence_of(text: str, shape: str, key: str) -> float:
    """Mean of two shares, 0 to 1: notes in the scale of `key`, and moves in the direction of `shape`; 0 for
    fewer than two notes.
    """
    pitches = [pitch for pitch, _ in notes(text)]
    if len(pitches) < 2:
        return 0.0
    fitting = sum(PITCHES[pitch].upper() in KEYS[key] for pitch in pitches) / len(pitches)
    moves = [(b - a) * SHAPES[shape] > 0 for a, b in pairwise(pitches)]
    return (fitting + sum(moves) / len(moves)) / 2


def quality_of(text: str) -> float:
    """Mean of two numbers, 0 to 1: the share of smooth moves, of one or two letters (neither a repeated note
    nor a leap), and the closeness of the number of notes n to eight, min(n, 8) / max(n, 8); times the share
    of characters that belong to notes. 0 for fewer than two notes.
    """
    pitches = [pitch for pitch, _ in notes(text)]
    if len(pitches) < 2:
        return 0.0
    smooth = [0 < abs(b - a) <= STEP for a, b in pairwise(pitches)]
    closeness = min(len(pitches), LENGTH) / max(len(pitches), LENGTH)
    readable = len("".join(re.findall(r"[A-Ga-g]2?", text))) / len(text)
    return readable * (sum(smooth) / len(smooth) + closeness) / 2


def held_of(text: str) -> float:
    """The users' hidden taste: the share of notes of double length, 0 to 1; 0 without notes. Captions say
    nothing about lengths, and neither adherence nor quality reads them.
    """
    lengths = [length for _, length in notes(text)]
    return lengths.count(2) / len(lengths) if lengths else 0.0


def liking_of(text: str, shape: str, key: str) -> float:
    """What users like, 0 to 1: half of it is the share of held notes, a quarter adherence and a
    quarter quality."""
    return 0.5 * held_of(text) + 0.25 * adherence_of(text, shape, key) + 0.25 * quality_of(text)


@piece(writes=("reward.adherence", "reward.adherence.status"), paper="arXiv:2402.04229")
@each
def adherence(prompt: Prompt, trajectory: Trajectory) -> float:
    """Adherence to the caption, 0 to 1: the mean of the share of notes in the scale of `meta["key"]` and of
    the share of moves in the direction of `meta["shape"]` (rising, falling). It stands for the similarity of
    joint text and music embeddings. Fails for a prompt without a caption's meta.
    """
    return adherence_of(trajectory.text, *_caption(prompt))


@piece(writes=("reward.quality", "reward.quality.status"), paper="arXiv:2402.04229")
@each
def quality(prompt: Prompt, trajectory: Trajectory) -> float:
    """Quality of a melody whatever its caption, 0 to 1: smooth moves, eight notes, nothing but notes. It
    stands for a network that predicts the mean opinion score of raters.
    """
    return quality_of(trajectory.text)


@piece(writes=("reward.held", "reward.held.status"), paper="arXiv:2402.04229")
@each
def held(prompt: Prompt, trajectory: Trajectory) -> float:
    """The part of `liking` that neither adherence nor quality measures: the share of notes of double
    length, 0 to 1. For evaluation: training may see users' choices only.
    """
    return held_of(trajectory.text)


@piece(writes=("reward.liking", "reward.liking.status"), paper="arXiv:2402.04229")
@each
def liking(prompt: Prompt, trajectory: Trajectory) -> float:
    """What the simulated users of the testbed `melodies` like, 0 to 1: half of it is `held`, a quarter
    adherence and a quarter quality. For evaluation: training may see users' choices only. Fails for a prompt
    without a caption's meta.
    """
    return liking_of(trajectory.text, *_caption(prompt))


def _caption(prompt: Prompt) -> tuple[str, str]:
    """Shape and key that the caption asks for."""
    shape, key = prompt.meta.get("shape"), prompt.meta.get("key")
    if shape not in SHAPES or key not in KEYS:
        raise DataError(
            f"prompt {prompt.id!r} is no caption of the testbed melodies: expected meta.shape of "
            f"{', '.join(SHAPES)} and meta.key of {', '.join(KEYS)}, got {shape!r} and {key!r}"
        )
    return shape, key
