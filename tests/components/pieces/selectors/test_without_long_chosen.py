"""Selector `without_long_chosen`: at most `ratio` times as many characters."""

from __future__ import annotations

from ratchet.components.piece import build
from ratchet.components.types import Context, Group, Message, Prompt, Trajectory


def pair(chosen: str, rejected: str) -> Group:
    rows = tuple(Trajectory((Message(role="assistant", content=text),)) for text in (chosen, rejected))
    return Group(Prompt(chosen, ()), rows, {"margin": [1.0, 1.0]})


def test_a_chosen_answer_of_exactly_the_ratio_stays_and_a_longer_rejected_one_always() -> None:
    """4, 6 and 7 characters against 4, with 1.5: the limit is 6."""
    groups = [pair("abcd", "abcd"), pair("abcdef", "abcd"), pair("abcdefg", "abcd"), pair("ab", "abcdefgh")]
    ctx = Context()
    kept = build("select", {"name": "without_long_chosen", "ratio": 1.5})(groups, ctx)
    assert kept == [groups[0], groups[1], groups[3]]
    assert dict(ctx.counts) == {"pairs with a much longer chosen answer": 1}
    assert build("select", {"name": "without_long_chosen", "ratio": 0.5})(groups, Context()) == [groups[3]]
    assert build("select", {"name": "without_long_chosen"})([], Context()) == []
