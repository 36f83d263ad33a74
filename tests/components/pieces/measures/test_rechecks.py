"""Verdicts after continuations: reward, accuracy, flips, and a vote of as many passages."""

from __future__ import annotations

import pytest

from ratchet.components.errors import DataError
from ratchet.components.piece import build
from ratchet.components.pieces.rewards.verdict import verdict
from ratchet.components.types import Context, Group, Prompt, Trajectory


def group(*rows: str, answer: str | None = "A") -> Group:
    """One judgement a row, with a letter for the verdict after each passage; "-" is none."""
    made = []
    for row in rows:
        texts = [f"So {letter}" if letter != "-" else "So?" for letter in row]
        meta = {"verdicts": texts, "continuations": len(row) - 1}
        made.append(Trajectory(({"role": "assistant", "content": texts[-1]},), meta=meta))
    return Group(Prompt("p", ({"role": "user", "content": "q"},), answer), tuple(made))


def measured(name: str, given: Group, **options: object) -> list[float]:
    (row,) = build("measure", {"name": name, **options})([given], Context())
    return row


def test_the_last_verdict_is_rewarded() -> None:
    texts = {
        "a1+2=3.So A": 1.0,
        "a1+2=3.So B": 0.0,
        "So B.Oh,a1+2=4!A.So A": 1.0,  # the last one counts
        "So A, so So B": 0.0,
        "A": 0.0,  # no marker
        "So Ann": 0.0,  # no letter
        "": 0.0,
    }
    rows = tuple(Trajectory(({"role": "assistant", "content": text},)) for text in texts)
    task = Group(Prompt("p", (), "A"), rows)
    assert verdict([task], Context())["reward.verdict"] == [list(texts.values())]
    assert verdict([task], Context(), marker="Or")["reward.verdict"] == [[0.0] * len(texts)]
    failed = verdict([Group(Prompt("p", ()), rows[:1])], Context())
    assert failed["reward.verdict"] == [[None]] and "'p'" in failed["reward.verdict.status"][0][0]


def test_accuracy_after_each_number_of_continuations() -> None:
    rows = group("AAB", "BBA", "-BA", "AAA")
    assert measured("rechecks", rows) == [1.0, 0.0, 0.0, 1.0]
    assert measured("rechecks", rows, after=1) == [1.0, 0.0, 0.0, 1.0]
    assert measured("rechecks", rows, after=2) == [0.0, 1.0, 1.0, 1.0]


def test_flips_are_counted_by_direction_and_their_difference_is_the_gain() -> None:
    rows = group("AAB", "BBA", "-BA", "AAA", "BAB", "ABA")
    assert measured("rechecks.corrected", rows) == [0.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    assert measured("rechecks.spoilt", rows) == [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]
    assert measured("rechecks.gained", rows) == [-1.0, 1.0, 1.0, 0.0, 0.0, 0.0]


def test_as_many_first_verdicts_as_passages_vote() -> None:
    """Of the first verdicts A, A, B, C three vote at a time: AAB and AAC are right; ABC (twice) is a tie of
    three. (1 + 1 + 1/3 + 1/3) / 4 = 2/3.
    """
    assert measured("rechecks.majority", group("ABB", "ABB", "BBB", "CBB")) == [pytest.approx(2 / 3)] * 4
    assert measured("rechecks.majority", group("A", "B")) == [0.5, 0.5], "one passage: no vote"
    assert measured("rechecks.majority", group("-A", "A-")) == [1.0, 1.0], "no verdict, no vote"
    assert measured("rechecks.majority", group("-A", "-A")) == [0.0, 0.0]


def test_many_subsets_are_replaced_by_disjoint_ones() -> None:
    """Of 10 judgements there are 252 subsets of five, and two disjoint ones: the first right, the second
    wrong.
    """
    assert measured("rechecks.majority", group(*["AAAAA"] * 5, *["BBBBB"] * 5)) == [0.5] * 10


def test_judgements_without_the_verdicts_are_an_error() -> None:
    bare = Group(Prompt("p", (), "A"), (Trajectory((), meta={"verdicts": ["So A"], "continuations": 2}),))
    for name in ("rechecks", "rechecks.gained", "rechecks.majority"):
        with pytest.raises(DataError, match=r"'p': expected a verdict after every .* got 1 for 2"):
            measured(name, bare)
    with pytest.raises(DataError, match="after 3 continuations, got 1"):
        measured("rechecks", group("AA"), after=3)
    with pytest.raises(DataError, match="has 2 judgements of 3 passages"):
        measured("rechecks.majority", group("AAA", "BBB"))
