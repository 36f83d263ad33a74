"""ILF: the critic, refinements after its feedback, and the demonstrations of the testbed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from ratchet.components.piece import build
from ratchet.components.pieces.rewards.critique import CHECKS, feedback_to
from ratchet.components.pieces.testbeds.refinements import refinements
from ratchet.components.types import Context, Group, Message, Prompt, Sample, Stop, Trajectory

TEA = Prompt("tea", (Message(role="user", content="who likes tea?"),))
BOOKS = Prompt("books", (Message(role="user", content="books again?"),))


END = 2


class Says:
    """Answers every prompt with a text; tokens are code points, and `END` ends a turn."""

    weights = "digest"

    def __init__(self, text: str, stop: Stop = "end") -> None:
        self.text, self.stop, self.prompts = text, stop, list[Prompt]()

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        self.prompts.append(prompt)
        return [1]

    def decode(self, tokens: Any) -> str:
        return "".join(map(chr, tokens))

    def generate(self, requests: Any) -> list[list[Sample]]:
        own = tuple(map(ord, self.text))
        return [[Sample(own, (-1.0,) * len(own), self.stop)] * r.count for r in requests]

    def encode(self, group: Group) -> Group:
        return group.replace(
            [
                replace(t, inputs={"tokens": [7, *tokens, END]}, mask=[False, *[True] * len(tokens), True])
                for t in group.trajectories
                for tokens in [list(map(ord, t.text))]
            ]
        )


def test_the_critic_names_the_first_thing_that_an_answer_lacks() -> None:
    assert feedback_to("who likes tea?", "Why do you not like it?") == "Be kind."
    assert feedback_to("who likes tea?", "Yes, I like it.") == "Ask back."
    assert feedback_to("who likes tea?", "Yes, I like it. Do you?") == "Name the topic."
    assert feedback_to("who likes tea?", "Yes, I like tea. Do you?") == ""


def test_refinements_are_answers_to_the_prompt_without_draft_and_feedback() -> None:
    policy, refiner = Says("I like tea."), Says("I like tea. Do you?")
    spec = {"name": "refined", "refiner": "refiner", "responses_per_prompt": 3}
    one, other = build("rollout", spec)([TEA, BOOKS], Context({"policy": policy, "refiner": refiner}))
    assert [m["content"] for m in refiner.prompts[0].messages] == [
        "who likes tea?",
        "I like tea.",
        "Ask back.",
    ]
    assert one.prompt is TEA and other.prompt is BOOKS
    assert [t.text for t in one.trajectories] == ["I like tea. Do you?"] * 3
    first = one.trajectories[0]
    assert first.inputs["tokens"] == [7, *map(ord, first.text), END] and first.logprobs is None
    assert first.mask == [False, *[True] * len(first.text), True]
    assert (first.meta["draft"], first.meta["feedback"]) == ("I like tea.", "Ask back.")
    found = build("annotate", {"name": "rewards.critique.incorporated"})([one, other], Context())
    assert found["reward.incorporated"] == [[1.0] * 3, [1.0] * 3]


def test_a_refinement_that_was_cut_is_not_taught_to_end() -> None:
    spec = {"name": "refined", "refiner": "refiner", "responses_per_prompt": 1}
    models = {"policy": Says("I like tea."), "refiner": Says("I like tea. D", "length")}
    (answer,) = build("rollout", spec)([TEA], Context(models))[0].trajectories
    assert answer.inputs["tokens"] == [7, *map(ord, "I like tea. D")]
    assert answer.mask == [False, *[True] * 13]


def test_an_answer_that_lacks_nothing_is_kept() -> None:
    policy, refiner = Says("Yes, I like tea. Do you?"), Says("No.")
    spec = {"name": "refined", "refiner": "refiner", "responses_per_prompt": 2}
    ctx = Context({"policy": policy, "refiner": refiner})
    (one,) = build("rollout", spec)([TEA], ctx)
    assert [t.text for t in one.trajectories] == ["Yes, I like tea. Do you?"] * 2 and not refiner.prompts
    assert ctx.counts["answers that need no refinement"] == 1
    assert one.trajectories[0].meta["feedback"] == ""


@pytest.mark.parametrize(
    ("text", "whole", "asked"),
    [("Yes, I like tea. Do you?", 1.0, 1.0), ("Do you?", 1 / 3, 1.0), ("I like tea.", 2 / 3, 0.0)],
)
def test_the_critique_counts_three_things_and_what_was_asked_for(
    text: str, whole: float, asked: float
) -> None:
    row = Trajectory(({"role": "assistant", "content": text},), meta={"feedback": "Ask back."})
    for name, expected in (("critique", whole), ("critique.incorporated", asked)):
        (values,) = (
            v
            for k, v in build("annotate", {"name": f"rewards.{name}"})(
                [Group(TEA, (row,))], Context()
            ).items()
            if not k.endswith("status")
        )
        assert values[0] == [pytest.approx(expected)]


def test_demonstrations_follow_the_feedback_in_half_of_the_rows_or_by_chance() -> None:
    rows = [row for row in refinements(size=600, seed=1) if row["split"] == "refine"]
    right = [
        CHECKS[row["prompt"][2]["content"]](row["prompt"][0]["content"], row["completion"][0]["content"])
        for row in rows
    ]
    assert 0.68 < sum(right) / len(rows) < 0.86, "half, and half of the others by chance"
    assert all(
        feedback_to(row["prompt"][0]["content"], row["prompt"][1]["content"]) == row["prompt"][2]["content"]
        for row in rows
    )
    assert all(
        CHECKS[r["prompt"][2]["content"]](r["prompt"][0]["content"], r["completion"][0]["content"])
        for r in refinements(size=50, followed=1.0)
        if r["split"] == "refine"
    )
