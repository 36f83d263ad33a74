"""Scores of three-sentence ideas by programs: novelty, feasibility, effect, and their balance."""

from __future__ import annotations

import re
from statistics import harmonic_mean

from ratchet.components.piece import each, piece
from ratchet.components.types import Prompt, Trajectory

ASPECTS = {
    "novelty": ("new", "odd", "rare", "bold"),
    "feasibility": ("easy", "cheap", "fast", "safe"),
    "effect": ("great", "good", "fine", "nice"),
}
"""Words of each aspect."""
SENTENCES, LENGTH = 3, 4
"""Sentences of an idea, and words of a sentence."""


def sentences_of(text: str) -> list[list[str]]:
    """Words of the first three sentences, each up to a full stop; what follows the last stop is left out.

    >>> sentences_of("new odd. easy. so. and more. then")
    [['new', 'odd'], ['easy'], ['so']]
    """
    return [re.findall("[a-z]+", part) for part in text.split(".")[:-1]][:SENTENCES]


def shares(words: list[str]) -> dict[str, float]:
    """Share of a sentence's words, of at least four, that belong to each aspect; a repeated word counts once.

    >>> shares(["new", "odd", "easy", "easy"])
    {'novelty': 0.5, 'feasibility': 0.25, 'effect': 0.0}
    """
    size = max(LENGTH, len(words))
    return {name: len(set(words) & set(own)) / size for name, own in ASPECTS.items()}


def scores(text: str) -> dict[str, float]:
    """An idea's score in each aspect, 0 to 1: the largest share in one of its sentences. Full scores in all
    three need one sentence for each.
    """
    found = [shares(words) for words in sentences_of(text)]
    return {name: max((one[name] for one in found), default=0.0) for name in ASPECTS}


@piece(writes=("reward.novelty", "reward.novelty.status"), paper="arXiv:2412.14626")
@each
def novelty(prompt: Prompt, trajectory: Trajectory) -> float:
    """Novelty of an idea, 0 to 1 (`scores`)."""
    return scores(trajectory.text)["novelty"]


@piece(writes=("reward.feasibility", "reward.feasibility.status"), paper="arXiv:2412.14626")
@each
def feasibility(prompt: Prompt, trajectory: Trajectory) -> float:
    """Feasibility of an idea, 0 to 1 (`scores`)."""
    return scores(trajectory.text)["feasibility"]


@piece(writes=("reward.effect", "reward.effect.status"), paper="arXiv:2412.14626")
@each
def effect(prompt: Prompt, trajectory: Trajectory) -> float:
    """Effect of an idea, 0 to 1 (`scores`)."""
    return scores(trajectory.text)["effect"]


@piece(writes=("reward.balance", "reward.balance.status"), paper="arXiv:2412.14626")
@each
def balance(prompt: Prompt, trajectory: Trajectory) -> float:
    """Harmonic mean of novelty, feasibility and effect, 0 to 1; 0 if one of them is 0."""
    return harmonic_mean(scores(trajectory.text).values())
