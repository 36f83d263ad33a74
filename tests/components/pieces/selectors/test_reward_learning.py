"""Selectors that change the pairs of a reward model: label correction, contrasts between similar prompts."""

from __future__ import annotations

from collections import Counter

from ratchet.components.piece import build
from ratchet.components.pieces.selectors.similar import most_similar
from ratchet.components.types import Context, Group, Prompt, Trajectory


def pair(question: str, chosen: str, rejected: str, **columns) -> Group:
    rows = tuple(Trajectory(({"role": "assistant", "content": text},)) for text in (chosen, rejected))
    return Group(Prompt(question, ({"role": "user", "content": question},)), rows, columns)


def test_the_labels_that_the_ensemble_contradicts_most_are_corrected() -> None:
    strengths = (2.0, -3.0, 0.5, -1.0)
    groups = [pair(f"q{i}", "a", "b", **{"reward.ensemble": [s, 0.0]}) for i, s in enumerate(strengths)]
    ctx = Context()
    changed = build("select", {"name": "preference_strength", "flip": 0.25})(groups, ctx)
    assert [g.trajectories[0].text for g in changed] == ["a", "b", "a", "a"]
    assert [g.columns["margin"] for g in changed] == [[2.0] * 2, [3.0] * 2, [0.5] * 2, [0.0] * 2]
    assert changed[1].columns["reward.ensemble"] == [0.0, -3.0], "columns change sides with their answers"
    assert ctx.counts == Counter({"labels corrected": 1})


def test_a_label_with_positive_strength_stays() -> None:
    groups = [pair(f"q{i}", "a", "b", **{"reward.ensemble": [1.0 + i, 0.0]}) for i in range(4)]
    changed = build("select", {"name": "preference_strength", "flip": 1.0})(groups, Context())
    assert all(g.trajectories[0].text == "a" for g in changed)


def test_the_most_similar_question_has_another_answer() -> None:
    questions = ["what colour is snow", "what colour is coal", "what colour is coal", "where do fish live"]
    assert most_similar(questions, ["white", "black", "black", "in water"]) == [1, 0, 0, 0]
    assert most_similar(["a", "b"], ["same", "same"]) == [None, None]
    longer = ["a b c", "a b c d e f g h", "a b"]
    assert most_similar(longer, ["x", "y", "z"])[0] == 2, "two of three words, rather than three of eight"
    assert most_similar(["a b", "b a", "a c"], ["x", "y", "z"]) == [2, 2, 0], "not the same words again"


def test_a_contrast_rejects_the_answer_to_the_most_similar_question() -> None:
    groups = [
        pair("What colour is snow?", "Snow is white.", "Go away."),
        pair("What colour is coal?", "Coal is black.", "No."),
        pair("Where do fish live?", "Fish live in water.", "No."),
        pair("Where do kings live?", "Kings live in castles.", "No."),
    ]
    every = build("select", {"name": "contrast_instructions", "share": 1.0})(groups, Context())
    assert [g.trajectories[1].text for g in every] == [
        "Coal is black.",
        "Snow is white.",
        "Kings live in castles.",
        "Fish live in water.",
    ]
    assert [g.trajectories[0].text for g in every] == [g.trajectories[0].text for g in groups]
    ctx = Context(seed=2)
    half = build("select", {"name": "contrast_instructions", "share": 0.5})(groups, ctx)
    kept = [
        [t.text for t in new.trajectories] == [t.text for t in old.trajectories]
        for new, old in zip(half, groups, strict=True)
    ]
    assert len(half) == 4 and sum(kept) == 2 and ctx.counts["contrast pairs"] == 2
