"""Answers that the guide and the policy write in turn, on engines that repeat their own letter."""

from __future__ import annotations

import pytest

from ratchet.components.piece import build
from ratchet.components.types import Context, Group, Prompt, Sample

PROMPTS = [Prompt(f"p{i}", ({"role": "user", "content": "go"},)) for i in range(40)]


class Letter:
    """Writes its letter up to the answer's sixth token, or `max_tokens`, with log-prob -0.5 each."""

    def __init__(self, letter: str, length: int = 6) -> None:
        self.token, self.weights, self.length = ord(letter), letter, length

    def encode_prompt(self, prompt):
        return [1, 2]

    def decode(self, tokens):
        return "".join(map(chr, tokens))

    def generate(self, requests):
        answers = []
        for request in requests:
            left = min(request.max_tokens, self.length - (len(request.tokens) - 2))
            answers.append([Sample((self.token,) * left, (-0.5,) * left, "end")] * request.count)
        return answers


def answered(*, round: int = 1, guide: int = 6, **options) -> list[Group]:
    models = {"policy": Letter("p"), "guide": Letter("g", guide)}
    rollout = build(
        "rollout", {"name": "guided", "guide": "guide", "responses_per_prompt": 3, "max_tokens": 6, **options}
    )
    return rollout(PROMPTS, Context(models=models, seed=3, round=round))


def test_after_a_guide_roll_in_only_the_policys_tokens_are_trained() -> None:
    groups = answered(share=1.0)
    cuts = set()
    for group in groups:
        assert len({t.text for t in group.trajectories}) == 1 and len(group.trajectories) == 3
        t = group.trajectories[0]
        cut = t.text.count("g")
        cuts.add(cut)
        assert t.text == "g" * cut + "p" * (6 - cut) and t.inputs["tokens"][2:] == [ord(c) for c in t.text]
        assert t.mask == [False] * (2 + cut) + [True] * (6 - cut)
        assert t.logprobs == [0.0] * (2 + cut) + [-0.5] * (6 - cut)
        assert t.weights == "p" and t.actor == "policy"
    assert cuts == {1, 2, 3, 4, 5}, "uniform from 1 to all but one token"


def test_before_a_guide_roll_out_only_the_policys_tokens_are_trained() -> None:
    groups = answered(share=1.0, roll_in=0.0)
    lengths = {t.text.count("p") for group in groups for t in group.trajectories}
    assert lengths == {1, 2, 3, 4, 5}
    assert any(len({t.text for t in group.trajectories}) > 1 for group in groups), (
        "every answer has its own cut"
    )
    for t in (t for group in groups for t in group.trajectories):
        cut = t.text.count("p")
        assert t.text == "p" * cut + "g" * (6 - cut)
        assert t.mask == [False] * 2 + [True] * cut + [False] * (6 - cut)
        assert t.logprobs == [0.0] * 2 + [-0.5] * cut + [0.0] * (6 - cut)


@pytest.mark.parametrize("roll_in", [1.0, 0.0])
def test_a_share_of_the_prompts_is_answered_with_the_guide(roll_in: float) -> None:
    helped = [any("g" in t.text for t in g.trajectories) for g in answered(share=0.6, roll_in=roll_in)]
    assert 0.4 < sum(helped) / len(helped) < 0.8
    models = {"policy": Letter("p"), "guide": Letter("g")}
    sample = build("rollout", {"name": "sample", "responses_per_prompt": 3, "max_tokens": 6})
    assert answered(share=0.0, roll_in=roll_in) == sample(PROMPTS, Context(models=models, seed=3, round=1))


def test_rounds_of_roll_out_come_first_then_a_share_of_the_rounds() -> None:
    def begins(**options) -> list[bool]:
        return [
            answered(share=1.0, round=round, **options)[0].trajectories[0].text[0] == "g"
            for round in range(1, 31)
        ]

    assert begins(roll_out_rounds=20) == [False] * 20 + [True] * 10, "D2LOLS"
    assert 0.5 < sum(begins(roll_in=0.8)) / 30 < 1.0, "LOLS"


def test_an_answer_of_one_token_is_not_cut() -> None:
    assert all(
        t.text == "pppppp" and all(t.mask[2:]) for g in answered(share=1.0, guide=1) for t in g.trajectories
    )
