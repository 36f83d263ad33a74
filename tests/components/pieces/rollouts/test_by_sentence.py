"""Controllers that change from sentence to sentence, on engines that write a sentence of their own."""

from __future__ import annotations

from typing import Any

import pytest

from ratchet.components.inference import mixed
from ratchet.components.piece import build
from ratchet.components.pieces.rollouts.by_sentence import asked
from ratchet.components.types import Context, Prompt, Sample

PROMPTS = [Prompt(f"p{i}", ({"role": "user", "content": f"on {i}?"},)) for i in range(2)]
END = 0


class Contract:
    eos = (END,)


class Engine:
    """Tokens are code points, 0 ends an answer; a policy or a controller by its name."""

    contract = Contract()

    def __init__(self, name: str) -> None:
        self.weights = name

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        return [ord(c) for c in prompt.messages[-1]["content"]]

    def decode(self, tokens: Any) -> str:
        return "".join(chr(t) for t in tokens if t)


class Planner(Engine):
    """Names one controller after another, by the number of full stops so far, then "end"."""

    def __init__(self, *names: str) -> None:
        super().__init__("planner")
        self.names, self.asked = names, list[str]()

    def generate(self, requests: Any) -> list[list[Sample]]:
        found = []
        for request in requests:
            assert request.temperature == 0.0
            question = "".join(map(chr, request.tokens))
            self.asked.append(question)
            name = [*self.names, "end"][question.count(".")]
            found.append([Sample((*map(ord, name), END), (0.0,) * (len(name) + 1), "end")])
        return found


class Mixture(Engine):
    """Stands for `MixedEngine`: writes the controller's first letter and a stop, or ends after `policy`."""

    made: list[dict[str, float]]
    seeds: list[int]

    def __init__(self, engines: Any, weights: Any) -> None:
        super().__init__("mixture")
        self.given = dict(weights)
        type(self).made.append(self.given)

    def generate(self, requests: Any) -> list[list[Sample]]:
        for request in requests:
            assert set(request.stop_strings) == {".", "!", "?"}
            self.seeds.append(request.seed)
        (name,) = [one for one in self.given if one != "policy"] or [""]
        tokens = (ord(name[0]), ord(".")) if name else (END,)
        return [
            [Sample(tokens[: r.max_tokens], (-1.0,) * min(len(tokens), r.max_tokens), "end")]
            for r in requests
        ]


def answered(planner: Planner, monkeypatch: pytest.MonkeyPatch, **options: Any):
    monkeypatch.setattr(mixed, "MixedEngine", Mixture)
    Mixture.made, Mixture.seeds = [], []
    spec = {
        "name": "by_sentence",
        "planner": "planner",
        "strengths": {"red": 2.0, "blue": 0.5, "zero": 0.0},
        "responses_per_prompt": 2,
        **options,
    }
    models = {
        "policy": Engine("policy"),
        "planner": planner,
        **{n: Engine(n) for n in ("red", "blue", "zero")},
    }
    return build("rollout", spec)(PROMPTS, Context(models=models))


def test_every_sentence_has_the_controller_that_the_planner_names(monkeypatch: pytest.MonkeyPatch) -> None:
    planner = Planner("red", "blue", "red")
    groups = answered(planner, monkeypatch)
    assert [g.prompt.id for g in groups] == ["p0", "p1"] and all(len(g.trajectories) == 2 for g in groups)
    for trajectory in (t for g in groups for t in g.trajectories):
        assert trajectory.text == "r.b.r." and trajectory.stop == "end"
        assert trajectory.meta["plan"] == ["red", "blue", "red", "end"]
        assert trajectory.mask == [False] * 5 + [True] * 7, "six characters and the end"
        assert trajectory.logprobs == [0.0] * 5 + [-1.0] * 7
    assert Mixture.made == [{"policy": -1.0, "red": 2.0}, {"policy": 0.5, "blue": 0.5}, {"policy": 1.0}]
    assert len(set(Mixture.seeds)) == len(Mixture.seeds) == 4 * 4, (
        "every sentence has random numbers of its own"
    )
    assert planner.asked[:2] == ["on 0? | ", "on 1? | "], "equal questions are asked once"
    assert "on 0? | r.b." in planner.asked and len(planner.asked) == 8
    assert asked("why?", " a. ") == "why? | a."


def test_a_strength_of_zero_and_an_unknown_name_leave_the_policy_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("zero", "green"):
        groups = answered(Planner(name), monkeypatch)
        assert Mixture.made == [{"policy": 1.0}]
        assert all(t.text == "" and t.stop == "end" for g in groups for t in g.trajectories)


def test_an_answer_is_cut_at_its_longest_length(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = answered(Planner("red", "blue", "red"), monkeypatch, max_tokens=3)
    assert {(t.text, t.stop, sum(t.mask)) for g in groups for t in g.trajectories} == {("r.b", "length", 3)}
