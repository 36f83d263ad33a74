"""Faithfulness of steps, with models of which it is known whether they read them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from ratchet.components.piece import build
from ratchet.components.pieces.measures.faithfulness import final_of
from ratchet.components.pieces.testbeds.traced_sums import traced_sums
from ratchet.components.types import Context, Group, Message, Prompt, Request, Sample, Trajectory

QUESTION = "steps 3+4+5\n"
ANSWER = "3+4=7. 7+5=12. So 12."


class Model:
    """Tokens are code points; `says` is the answer to all the text before it."""

    def __init__(self, says: Callable[[str], str]) -> None:
        self.says, self.read = says, list[str]()

    def encode_text(self, text: str) -> list[int]:
        return list(map(ord, text))

    def decode(self, tokens: Any) -> str:
        return "".join(map(chr, tokens))

    def generate(self, requests: list[Request]) -> list[list[Sample]]:
        texts = [self.decode(r.tokens) for r in requests]
        self.read += texts
        assert all(r.temperature == 0 for r in requests)
        return [[Sample(tuple(map(ord, self.says(text))), (), "end")] for text in texts]


def answered(text: str) -> Group:
    tokens = [*map(ord, QUESTION + text)]
    mask = [False] * len(QUESTION) + [True] * len(text)
    row = Trajectory(({"role": "assistant", "content": text},), {"tokens": tokens}, mask)
    return Group(Prompt("p", (Message(role="user", content=QUESTION),)), (row,))


def measured(model: Model, text: str = ANSWER, **options: Any) -> float:
    spec = {"name": "faithfulness", **options}
    return build("measure", spec)([answered(text)], Context({"policy": model}))[0][0]


def test_filler_replaces_the_steps_by_as_many_tokens() -> None:
    model = Model(lambda text: " 12.")
    assert measured(model) == 0.0, "an answer that does not read the steps"
    steps = "3+4=7. 7+5=12."
    assert model.read == [QUESTION + "." * len(steps) + " So"]
    assert measured(Model(lambda text: " 9.")) == 1.0


def test_early_answers_are_forced_after_each_number_of_steps() -> None:
    """After no step the model says 9, after one step 12, its own final answer: 1/2."""
    model = Model(lambda text: " 12." if "=7." in text else " 9.")
    assert measured(model, test="early") == 0.5
    assert model.read == [QUESTION + " So", QUESTION + "3+4=7. So"]


@pytest.mark.parametrize("text", ["So 12.", "12", "3+4=7. 7+5=12."])
def test_an_answer_without_steps_or_cue_depends_on_none(text: str) -> None:
    model = Model(lambda text: " 1.")
    assert measured(model, text) == measured(model, text, test="early") == 0.0 and not model.read


def test_traced_sums_hold_out_their_sums_and_have_right_steps() -> None:
    rows = list(traced_sums(size=300, more=50, held_out=20, seed=2))
    by = {split: [r for r in rows if r["split"] == split] for split in ("train", "direct", "traced", "test")}
    assert [len(part) for part in by.values()] == [300, 50, 50, 20]

    prompts = [row["prompt"][0]["content"] for row in rows]
    assert len(set(prompts)) == len(prompts), "curation keeps a prompt once"

    def numbers(row: dict) -> str:
        return row["prompt"][0]["content"].split()[1]

    assert not {numbers(r) for r in by["test"]} & {numbers(r) for r in rows if r["split"] != "test"}
    for row in rows:
        assert sum(map(int, numbers(row).split("+"))) == int(row["answer"])
    for row in by["traced"]:
        first, second, final = row["completion"][0]["content"].rstrip(".").split(". ")
        assert all(eval(left) == int(right) for left, right in (p.split("=") for p in (first, second)))
        assert final == f"So {row['answer']}" and second.endswith(f"={row['answer']}")
    assert all(r["completion"][0]["content"] == f"So {r['answer']}." for r in by["direct"])


def test_final_numbers_with_decimals_differ() -> None:
    texts = ("So 3.5.", "So 3.9", "So 1,250.", "So -2, then.", "So 7.")
    assert [final_of(text, "So") for text in texts] == ["3.5", "3.9", "1250", "-2", "7"]
