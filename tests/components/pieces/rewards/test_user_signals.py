"""RLUF: simulated users, the choice of logged answers, and the learned probability, by hand."""

from __future__ import annotations

import math
from statistics import fmean

import pytest

from ratchet.components.piece import build
from ratchet.components.types import Context, Group, Message, Prompt, Trajectory


def group(name: str, columns: dict, texts: list[str] | None = None) -> Group:
    size = len(next(iter(columns.values()))) if columns else len(texts or ())
    texts = texts or [f"answer {i}" for i in range(size)]
    prompt = Prompt(name, (Message(role="user", content=name),))
    return Group(prompt, tuple(Trajectory(({"role": "assistant", "content": t},)) for t in texts), columns)


def test_users_react_with_the_probability_of_their_reward() -> None:
    """sigmoid(8 x 0.5 - 6) = 1 / (1 + e^2) = 0.119203."""
    groups = [group(str(i), {"reward.sentiment": [0.5] * 10 + [0.75] * 10}) for i in range(200)]
    found = build("annotate", {"name": "rewards.reaction", "offset": 6.0})(groups, Context(seed=1))
    assert found["reward.reaction"][0] == pytest.approx([0.119203] * 10 + [0.5] * 10, abs=1e-6)
    assert {value for row in found["reacted"] for value in row} == {0.0, 1.0}
    assert fmean(v for row in found["reacted"] for v in row[:10]) == pytest.approx(0.119, abs=0.025)
    assert fmean(v for row in found["reacted"] for v in row[10:]) == pytest.approx(0.5, abs=0.04)
    again = build("annotate", {"name": "rewards.reaction", "offset": 6.0})(groups[7:8], Context(seed=1))
    assert again["reacted"][0] == found["reacted"][7], "a function of seed, round, prompt and answer"


def test_users_hardly_react_to_a_very_low_reward() -> None:
    """exp(8 x 90 + 7) overflows."""
    found = build("annotate", {"name": "rewards.reaction"})(
        [group("a", {"reward.sentiment": [-90.0]})], Context()
    )
    assert 0 <= found["reward.reaction"][0][0] < 1e-300 and found["reacted"] == [[0.0]]


def test_each_answer_with_a_reaction_is_beside_one_without() -> None:
    select = build("select", {"name": "reacted"})
    rows = [
        group("a", {"reacted": [0.0, 1.0, 0.0, 1.0, 0.0]}),
        group("b", {"reacted": [0.0, 0.0]}),
        group("c", {"reacted": [1.0, 1.0, 0.0]}),
    ]
    ctx = Context(seed=1)
    made = select(rows, ctx)
    assert [g.prompt.id for g in made] == ["a", "a", "c"]
    assert {g.trajectories[0].text for g in made[:2]} == {"answer 1", "answer 3"}
    assert len({g.trajectories[1].text for g in made[:2]} & {"answer 0", "answer 2", "answer 4"}) == 2
    assert all(g.columns["reacted"] == [1.0, 0.0] for g in made)
    assert (ctx.counts["answers with a reaction"], ctx.counts["answers without"]) == (4, 6)
    assert [g.trajectories for g in select(rows, Context(seed=1))] == [g.trajectories for g in made]


class Reader:
    """A reward model whose score is the number of letters of prompt and answer."""

    def encode(self, group: Group) -> Group:
        return group

    def score(self, groups, outputs):
        return [
            {"scores": [float(len(g.prompt.messages[-1]["content"] + t.text)) for t in g.trajectories]}
            for g in groups
        ]


def test_a_probability_is_the_sigmoid_of_the_score_with_or_without_the_prompt() -> None:
    rows = [group("question", {}, ["yes", ""])]
    given = {"name": "rewards.probability", "model": "m"}
    one = build("annotate", {**given, "offset": 10.0})(rows, Context({"m": Reader()}))
    assert one["reward.probability"][0] == [pytest.approx(1 / (1 + math.exp(-1))), None]
    assert one["reward.probability.status"][0] == ["ok", "skipped: the answer is empty"]
    alone = build("annotate", {**given, "alone": "T", "offset": 4.0})(rows, Context({"m": Reader()}))
    assert alone["reward.probability"][0][0] == 0.5
    assert rows[0].prompt.messages[0]["content"] == "question"
