"""Ideas of three sentences: scores by hand, and the rows of the testbed `ideas`."""

from __future__ import annotations

from collections import Counter
from statistics import fmean

import pytest

from ratchet.components.piece import build
from ratchet.components.pieces.rewards.idea import ASPECTS, scores
from ratchet.components.pieces.testbeds.ideas import emphases, ideas
from ratchet.components.types import Context, Group, Prompt, Trajectory


def test_a_score_is_the_largest_share_of_a_sentence() -> None:
    """Novelty 2/4 and 1/5, feasibility 1/4 and 3/5, effect 0 in both; "nice" comes after the third stop."""
    text = "new odd easy so. rare cheap fast safe so. for. nice nice nice nice."
    assert scores(text) == {"novelty": 0.5, "feasibility": 0.6, "effect": 0.0}
    assert scores("new") == {"novelty": 0.0, "feasibility": 0.0, "effect": 0.0}, "no sentence ends"
    assert scores("new.")["novelty"] == 0.25, "of at least four words"
    assert scores("new new new odd.")["novelty"] == 0.5, "a word said again counts once"


def test_rewards_are_the_scores_and_their_harmonic_mean() -> None:
    """1, 1/2 and 1/4: 3 / (1 + 2 + 4) = 3/7."""
    texts = ("new odd rare bold. easy safe so so. nice so so so.", "new odd rare bold.")
    rows = [Group(Prompt("p", ()), tuple(Trajectory(({"role": "assistant", "content": t},)) for t in texts))]
    expected = {"novelty": [1, 1], "feasibility": [0.5, 0], "effect": [0.25, 0], "balance": [3 / 7, 0]}
    for name, values in expected.items():
        found = build("annotate", {"name": f"rewards.idea.{name}"})(rows, Context())
        assert found[f"reward.{name}"] == [pytest.approx(values)]


def test_emphases_name_the_aspect_of_each_sentence_and_the_end() -> None:
    assert emphases("so nice so easy cheap. new good so so.") == ["feasibility", "novelty", "end"]


def test_plans_are_those_of_good_ideas_and_held_out_prompts_occur_nowhere_else() -> None:
    rows = list(ideas(seed=2))
    by_split = Counter(row["split"] for row in rows)
    assert (by_split["sft"], by_split["prompts"], by_split["test"]) == (600, 60, 60)
    texts = {
        split: {r["prompt"][0]["content"].partition(" | ")[0] for r in rows if r["split"] == split}
        for split in by_split
    }
    assert texts["sft_plan"] <= texts["sft"]
    assert not texts["test"] & (texts["sft"] | texts["prompts"]) and not texts["sft"] & texts["prompts"]
    good = {
        r["id"]: r["completion"][0]["content"]
        for r in rows
        if r["split"] == "sft" and min(scores(r["completion"][0]["content"]).values()) >= 0.7
    }
    plans = [row for row in rows if row["split"] == "sft_plan"]
    assert 60 < len(good) < 150 and len(plans) == 4 * len(good)
    for row in plans:
        name, place = row["id"].split("-plan-")
        said = row["prompt"][0]["content"].partition(" | ")[2]
        assert good[name].startswith(said) and said.count(".") == int(place)
        assert row["completion"][0]["content"] == emphases(good[name])[int(place)]
    assert {row["completion"][0]["content"] for row in plans} == {*ASPECTS, "end"}


def test_words_of_focused_sentences_are_pure_to_the_stated_share() -> None:
    """0.8 + 0.2 / 4 of the words belong to the sentence's aspect; of others a quarter to each aspect."""
    rows = ideas(focused=1.0, demonstrations=500)
    focused = [r["completion"][0]["content"] for r in rows if r["split"] == "sft"]
    own = [
        word in ASPECTS[name]
        for text in focused
        for part, name in zip(text.split("."), emphases(text), strict=False)
        for word in part.split()
    ]
    assert fmean(own) == pytest.approx(0.85, abs=0.02)
    mixed = " ".join(r["completion"][0]["content"] for r in ideas(focused=0.0) if r["split"] == "sft")
    share = fmean(word in ASPECTS["effect"] for word in mixed.replace(".", "").split())
    assert share == pytest.approx(0.25, abs=0.02)
