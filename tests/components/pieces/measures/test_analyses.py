"""Measures of diversity, divergence, token shift and sharpness against hand-computed numbers."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch

from ratchet.components.errors import ContractError
from ratchet.components.pieces.measures.across_input import across_input
from ratchet.components.pieces.measures.kl import kl
from ratchet.components.pieces.measures.sharpness import sharpness
from ratchet.components.pieces.measures.unshifted import unshifted
from ratchet.components.text.contract import Contract
from ratchet.components.types import Context, Group, Prompt, Sample, Trajectory


def group(name: str, *texts: str) -> Group:
    """Each letter of an answer is a token; the prompt is the token 0."""
    return Group(
        Prompt(name, ({"role": "user", "content": name},)),
        tuple(
            Trajectory(
                ({"role": "assistant", "content": text},),
                {"tokens": [0, *map(ord, text)]},
                [False] + [True] * len(text),
            )
            for text in texts
        ),
    )


class Unigram(torch.nn.Module):
    """Engine and model of a language without context: log-probs of the letters a and b."""

    def __init__(self, a: float, template: str = "chat", *, ends: bool = False) -> None:
        super().__init__()
        self.contract, self.ends = Contract((99,), template, "abc", "float32"), ends
        self.logits = torch.nn.Parameter(torch.tensor([math.log(a), math.log(1 - a)]))
        self.model = self

    def encode(self, one: Group) -> Group:
        """If `ends`, the token of the letter c ends a turn."""
        texts = [t.text + "c" * self.ends for t in one.trajectories]
        made = group(one.prompt.id, *texts).trajectories
        return one.replace(
            [
                t if t.inputs else dataclasses.replace(t, inputs=new.inputs, mask=new.mask)
                for t, new in zip(one.trajectories, made, strict=True)
            ]
        )

    def score(self, groups: Any, outputs: frozenset[str]) -> list[dict[str, list[list[float]]]]:
        logprobs = [*self.logits.detach().log_softmax(0).tolist(), -9.0]
        return [
            {
                "logprobs": [
                    [0.0, *(logprobs[c - 97] for c in t.inputs["tokens"][1:])] for t in one.trajectories
                ]
            }
            for one in map(self.encode, groups)
        ]

    def generate(self, requests: Any) -> list[list[Sample]]:
        """The likelier letter first; after a `b` it is another `b`."""
        found = []
        for request in requests:
            best = [98, 97] if request.tokens[-1] == 98 else [97, 98]
            top = tuple((token, 0.0) for token in best[: request.top_logprobs])
            found.append([Sample((best[0],), (0.0,), "length", (top,))])
        return found


def test_across_input_diversity_is_that_of_one_answer_to_each_prompt() -> None:
    """First answers `a` and `a`: one word of two; second ones `b` and `c`: two of two; V is large."""
    rows = across_input([group("p", "a", "b"), group("q", "a", "c")], Context(), largest=1)
    assert rows == [pytest.approx([0.5, 1.0], abs=1e-4)] * 2


def test_kl_is_the_log_ratio_of_the_two_models() -> None:
    models = {"policy": Unigram(0.8), "base": Unigram(0.5)}
    assert kl([group("p", "aa", "b")], Context(models=models)) == [
        pytest.approx([2 * math.log(0.8 / 0.5), math.log(0.2 / 0.5)], abs=1e-6)
    ]


def test_kl_is_that_of_the_sampled_tokens() -> None:
    """Another text of the same tokens changes nothing; a cut answer has no end of turn, for either model."""
    (sampled,) = group("p", "ab").trajectories
    cut = dataclasses.replace(sampled, stop="length")
    other_text = dataclasses.replace(sampled, messages=({"role": "assistant", "content": "aaa"},))
    answers = Group(Prompt("p", ()), (cut, other_text))
    expected = math.log(0.8 / 0.5) + math.log(0.2 / 0.5)
    same = {"policy": Unigram(0.8, ends=True), "base": Unigram(0.5, ends=True)}
    assert kl([answers], Context(models=same)) == [pytest.approx([expected] * 2, abs=1e-6)]
    other = {**same, "base": Unigram(0.5, "another", ends=True)}
    assert kl([answers.take([0])], Context(models=other)) == [pytest.approx([expected], abs=1e-6)]


def test_unshifted_tokens_are_among_the_likeliest_of_the_other_model() -> None:
    """The likeliest answer is a, then a: of `aab` two tokens are it, after `b` another `b` is."""
    ctx = Context(models={"base": Unigram(0.8)})
    assert unshifted([group("p", "aab", "bb", "")], ctx) == [[pytest.approx(2 / 3), 0.5, 1.0]]
    assert unshifted([group("p", "aab", "bb")], ctx, rank=2) == [[1.0, 1.0]]


def test_sharpness_is_the_rise_of_the_loss_under_noise_and_leaves_the_weights() -> None:
    policy = Unigram(0.8)
    before = policy.logits.detach().clone()
    noise = torch.randn(2, generator=torch.Generator().manual_seed(3))
    moved = (before + 0.1 * before.abs() * noise).log_softmax(0)
    expected = [-(moved[0] - math.log(0.8)), -((moved[0] + moved[1]) / 2 - math.log(0.8 * 0.2) / 2)]
    found = sharpness([group("p", "a", "ab")], Context(models={"policy": policy}), rho=0.1, draws=1, seed=3)
    assert found == [pytest.approx([float(x) for x in expected], abs=1e-6)]
    assert torch.equal(policy.logits, before)
    with pytest.raises(ContractError, match="no parameter of the model has 'layers"):
        sharpness([group("p", "a")], Context(models={"policy": policy}), layer="layers.9.")
