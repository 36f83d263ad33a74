"""Rollouts with a verified answer to another prompt as in-context example, on an engine that copies the
example.
"""

from __future__ import annotations

import pytest

from ratchet.components.errors import RecipeError
from ratchet.components.piece import build
from ratchet.components.types import Context, Group, Prompt, Sample


class Copycat:
    """Answers "x, y", or copies the example answer of the conversation; answers prompt `free` without a
    comma.
    """

    weights = "digest"

    def __init__(self) -> None:
        self.prompts: list[str] = []

    def encode_prompt(self, prompt):
        return [ord(c) for c in "|".join(m["content"] for m in prompt.messages)]

    def decode(self, tokens):
        return "".join(chr(t) for t in tokens if t)

    def generate(self, requests):
        answers = []
        for request in requests:
            text = "".join(map(chr, request.tokens))
            self.prompts.append(text)
            shown = text.split("|")
            answer = (
                shown[1]
                if len(shown) == 3
                else "only hot rice"
                if text == "free food?"
                else f"only hot rice and {len(text)}"
                if text.startswith("free")
                else "rice, beans"
            )
            answers.append(
                [Sample((*map(ord, answer), 0), (-1.0,) * (len(answer) + 1), "end")] * request.count
            )
        return answers


def prompt_of(name: str, family: str = "no_comma") -> Prompt:
    spec = {"family": family, "wording": 0, "params": {}, "text": "Do not use any commas.", "kind": "seen"}
    return Prompt(
        name, ({"role": "user", "content": f"{name} food?"},), meta={"question": name, "instruction": spec}
    )


def drawn(prompts: list[Prompt], **options: object) -> tuple[list[Group], Copycat, Context]:
    engine = Copycat()
    ctx = Context(models={"policy": engine}, seed=1)
    rollout = build(
        "rollout",
        {
            "name": "by_example",
            "responses_per_prompt": 3,
            "shown": 2,
            "temperature": 0.8,
            "written": False,
            **options,
        },
    )
    return rollout(prompts, ctx), engine, ctx


def test_example_is_a_verified_answer_to_another_question_of_the_family() -> None:
    (free, hard, other), engine, ctx = drawn(
        [prompt_of("free"), prompt_of("hard"), prompt_of("other", "quotation")]
    )
    assert [t.text for t in hard.trajectories] == ["rice, beans", "only hot rice", "only hot rice"]
    assert [t.text for t in free.trajectories] == ["only hot rice"] * 3, (
        "its own answer is no example to itself"
    )
    assert [t.text for t in other.trajectories] == ["rice, beans"] * 3, "no verified answer of its family"
    assert engine.prompts[3:6] == ["free food?", "free food?|only hot rice|hard food?", "other food?"]
    assert engine.prompts[6:] == [
        "hard food?|only hot rice|free food?",
        "free food?|only hot rice|hard food?",
        "other food?",
    ], "what was found helps the next"
    assert dict(ctx.counts) == {"answers with found example": 3, "answers with no example": 3}


def test_a_written_example_helps_until_an_answer_is_verified() -> None:
    (hard, _), engine, ctx = drawn([prompt_of("hard"), prompt_of("harder")], written=True)
    written = "What do you like to eat? Do not use any commas.|I like pasta and bread and cheese.|"
    assert engine.prompts[2:4] == [f"{written}hard food?", f"{written}harder food?"]
    assert engine.prompts[4:] == [
        "harder food?|I like pasta and bread and cheese.|hard food?",
        "hard food?|I like pasta and bread and cheese.|harder food?",
    ]
    assert hard.trajectories[1].text == "I like pasta and bread and cheese." and dict(ctx.counts) == {
        "answers with written example": 2,
        "answers with found example": 2,
    }


def test_tokens_and_mask_exclude_the_example() -> None:
    (_, hard), *_ = drawn([prompt_of("free"), prompt_of("hard")])
    plain, *shown = hard.trajectories
    assert plain.logprobs is not None and "example" not in plain.meta
    for t in shown:
        assert list(t.inputs["tokens"]) == [*map(ord, "hard food?only hot rice"), 0]
        assert list(t.mask) == [False] * len("hard food?") + [True] * (len("only hot rice") + 1)
        assert t.logprobs is None and t.meta["example"] is True


def test_all_answers_may_be_shown_an_example_and_no_more() -> None:
    (group, _), engine, ctx = drawn(
        [prompt_of("hard"), prompt_of("harder")], responses_per_prompt=2, written=True
    )
    assert len(group.trajectories) == 2 and all("|" in text for text in engine.prompts)
    assert ctx.counts["answers with written example"] == 2
    with pytest.raises(RecipeError, match="shown is 2, expected at most responses_per_prompt, 1"):
        drawn([prompt_of("hard")], responses_per_prompt=1)


def test_examples_are_independent_of_prompt_order() -> None:
    prompts = [
        prompt_of(name)
        for name in ("free", "free too", "free at last", "hard", "harder", "hardest", "the most hard")
    ]
    there, back = drawn(prompts)[0], drawn(prompts[::-1])[0]
    assert len({t.text for g in there for t in g.trajectories if g.prompt.id.startswith("hard")}) > 2, (
        "several examples are used"
    )
    assert {g.prompt.id: [t.text for t in g.trajectories] for g in there} == {
        g.prompt.id: [t.text for t in g.trajectories] for g in back
    }
