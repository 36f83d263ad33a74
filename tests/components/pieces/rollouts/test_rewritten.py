"""Rollouts that rewrite the prompt: conjugate prompting, and constant examples before it."""

from __future__ import annotations

from typing import Any

import pytest

from ratchet.components.piece import build
from ratchet.components.types import Context, Group, Message, Prompt, Sample, Stop

ASKED = Prompt("p", (Message(role="user", content="Compare 3 and 14."),))


class Echo:
    """Repeats the last message; tokens are code points, and 2 ends a turn."""

    weights = "digest"

    def __init__(self, stop: Stop = "end") -> None:
        self.stop, self.prompts = stop, list[Prompt]()

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        self.prompts.append(prompt)
        return [ord(c) for c in prompt.messages[-1]["content"]]

    def decode(self, tokens: Any) -> str:
        return "".join(map(chr, tokens))

    def generate(self, requests: Any) -> list[list[Sample]]:
        return [[Sample(tuple(r.tokens), (-1.0,) * len(r.tokens), self.stop)] * r.count for r in requests]

    def encode(self, group: Group) -> Group:
        import dataclasses

        return group.replace(
            [
                dataclasses.replace(
                    t, inputs={"tokens": [0, *map(ord, t.text), 2]}, mask=[False, *[True] * len(t.text), True]
                )
                for t in group.trajectories
            ]
        )


def test_conjugate_rewrites_the_prompt_and_the_answer_back() -> None:
    engine, words = Echo(), {"3": "three", "14": "fourteen"}
    (group,) = build("rollout", {"name": "conjugate", "words": words})(
        [ASKED], Context(models={"policy": engine})
    )
    assert engine.prompts[0].messages[0]["content"] == "Compare three and fourteen."
    (answer,) = group.trajectories
    assert group.prompt is ASKED and answer.text == "Compare 3 and 14." and answer.logprobs is None
    assert answer.inputs["tokens"] == [0, *map(ord, answer.text), 2]
    assert answer.mask == [False, *[True] * len(answer.text), True]


def test_a_rewritten_answer_that_was_cut_has_no_end_of_turn() -> None:
    ctx = Context(models={"policy": Echo("length")})
    (group,) = build("rollout", {"name": "conjugate", "words": {"3": "three"}})([ASKED], ctx)
    (answer,) = group.trajectories
    assert answer.inputs["tokens"] == [0, *map(ord, "Compare 3 and 14.")]
    assert answer.mask == [False, *[True] * 17]


def test_conjugate_needs_words_that_lead_back() -> None:
    rollout = build("rollout", {"name": "conjugate", "words": {"3": "x", "4": "x"}})
    with pytest.raises(ValueError, match="the same replacement"):
        rollout([ASKED], Context(models={"policy": Echo()}))


def test_in_context_puts_the_examples_before_the_prompt() -> None:
    engine = Echo()
    spec = {
        "name": "in_context",
        "preamble": "Be kind.",
        "examples": [["hi", "Hello!"]],
        "responses_per_prompt": 2,
    }
    (group,) = build("rollout", spec)([ASKED], Context(models={"policy": engine}))
    assert [m["content"] for m in engine.prompts[0].messages] == [
        "Be kind.",
        "hi",
        "Hello!",
        "Compare 3 and 14.",
    ]
    assert group.prompt is ASKED and len(group.trajectories) == 2
    own = Prompt("q", (Message(role="system", content="Be brief."), *ASKED.messages))
    build("rollout", spec)([own], Context(models={"policy": engine}))
    assert [(m["role"], m["content"]) for m in engine.prompts[1].messages][:2] == [
        ("system", "Be kind.\n\nBe brief."),
        ("user", "hi"),
    ], "templates allow one system message, the first"
    with pytest.raises(ValueError, match="pairs of a question and an answer"):
        build("rollout", {"name": "in_context", "examples": [["hi"]]})(
            [ASKED], Context(models={"policy": engine})
        )
