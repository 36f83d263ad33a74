"""Rewards of melodies and what simulated users like, by hand."""

from __future__ import annotations

import pytest

from ratchet.components.piece import build
from ratchet.components.pieces.rewards.melody import notes
from ratchet.components.types import Context, Group, Prompt, Trajectory

RISING_IN_C = {"shape": "rising", "key": "C"}


def rewards(name: str, texts: list[str], meta: dict) -> list:
    rows = tuple(Trajectory(({"role": "assistant", "content": text},)) for text in texts)
    piece = build("annotate", {"name": f"rewards.melody.{name}"})
    return piece([Group(Prompt("p", (), meta=meta), rows)], Context())[f"reward.{name}"][0]


def test_notes_have_a_place_in_two_octaves_and_a_length() -> None:
    assert notes("C2Bcb2") == [(0, 2), (6, 1), (7, 1), (13, 2)]
    assert notes("no tune, 2!") == [(9, 1)], "the letter e"


def test_adherence_is_the_mean_of_notes_in_the_key_and_moves_in_the_direction() -> None:
    """Of "CDFE" three of four notes are in C pentatonic, and two of three moves rise."""
    texts = ["CDEGAcde", "CDFE", "agedcAGE", "BF", "C", ""]
    expected = [1.0, (3 / 4 + 2 / 3) / 2, 1 / 2, 0.0, 0.0, 0.0]
    assert rewards("adherence", texts, RISING_IN_C) == pytest.approx(expected)
    falling_in_f = {"shape": "falling", "key": "F"}
    expected = [3 / 4 * 1 / 2, (3 / 4 + 1 / 3) / 2]  # F has no E: six of eight notes, and three of four
    assert rewards("adherence", texts[:2], falling_in_f) == pytest.approx(expected)


def test_quality_is_the_mean_of_smooth_moves_and_closeness_to_eight_notes() -> None:
    """Moves of "CCEAc": 0 and 3 letters are not smooth, 2 and 2 are; five notes of eight. Four of the six
    characters of "CD ED!" are notes.
    """
    texts = ["CDEGAcde", "CCEAc", "CDEDEDEDED", "CD ED!", "c", "Hello"]
    expected = [1.0, (2 / 4 + 5 / 8) / 2, (1 + 8 / 10) / 2, 4 / 6 * (1 + 4 / 8) / 2, 0.0, 0.0]
    assert rewards("quality", texts, {}) == pytest.approx(expected)


def test_users_like_held_notes_half_and_adherence_and_quality_a_quarter_each() -> None:
    """Two of the three notes of "C2DE2" are held. "CDEGAcde" is perfect but for that."""
    texts = ["C2DE2", "CDEGAcde", "C2D2E2G2A2c2d2e2", "C2", "Hm"]
    assert rewards("held", texts, RISING_IN_C) == pytest.approx([2 / 3, 0.0, 1.0, 1.0, 0.0])
    expected = [0.5 * 2 / 3 + 0.25 + 0.25 * (1 + 3 / 8) / 2, 0.5, 1.0, 0.5, 0.0]
    assert rewards("liking", texts, RISING_IN_C) == pytest.approx(expected)


def test_neither_adherence_nor_quality_reads_lengths() -> None:
    short, long = "CDFEGAc", "C2D2F2E2G2A2c2"
    for name in ("adherence", "quality"):
        one, other = rewards(name, [short, long], RISING_IN_C)
        assert one == other
    assert rewards("held", [short, long], RISING_IN_C) == [0.0, 1.0]


def test_a_prompt_without_a_caption_is_a_failed_reward() -> None:
    for meta in ({}, {"shape": "rising", "key": "H"}):
        assert rewards("adherence", ["CDE"], meta) == rewards("liking", ["CDE"], meta) == [None]
