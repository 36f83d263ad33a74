"""Chat conversations: history, streamed text, stop reasons."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from ratchet.components.inference.conversation import Answer, Conversation, Settings
from ratchet.components.types import Prompt

GREEDY = Settings(temperature=0.0, tokens=20)


@pytest.fixture
def model(tiny_model: Path) -> Conversation:
    return Conversation(tiny_model)


def last(answers: Iterator[Answer]) -> Answer:
    return list(answers)[-1]


def test_answer_grows_by_a_token_and_equals_the_engines(model: Conversation) -> None:
    texts = [(answer.text, answer.stop) for answer in model.answer("hi", GREEDY, 0)]
    assert len(texts) > 3 and all(later.startswith(text) for (text, _), (later, _) in pairwise(texts))
    assert {stop for _, stop in texts[:-1]} == {""} and texts[-1][1] == "end"
    request = model._request([{"role": "user", "content": "hi"}], GREEDY, 0)
    assert texts[-1][0] == model.engine.decode(model.engine.generate([request])[0][0].tokens)


def test_history_contains_finished_exchanges(model: Conversation) -> None:
    first = last(model.answer("hi", GREEDY, 0))
    seen: list[int] = []
    stream = model.engine.stream
    model.engine.stream = lambda request: (seen.append(len(request.tokens)), stream(request))[1]  # type: ignore[method-assign]
    last(model.answer("how are you?", GREEDY, 1))
    assert [m["role"] for m in model.history] == ["user", "assistant"] * 2 and model.history[1][
        "content"
    ] == first.text
    assert seen == [len(model.engine.encode_prompt(Prompt("", tuple(model.history[:3]))))]


def test_seed_decides_the_answer(tiny_model: Path) -> None:
    def texts(seed: int) -> list[str]:
        return [
            last(Conversation(tiny_model).answer("tell me about dogs", Settings(2.0, 12), seed)).text
            for _ in range(2)
        ]

    assert len(set(texts(1))) == 1 and texts(1) != texts(2)


def test_truncated_answer_has_a_note(model: Conversation) -> None:
    cut = last(model.answer("hi", Settings(0.0, 2), 0))
    assert (cut.stop, cut.note, len(cut.tokens)) == ("length", "cut at 2 tokens", 2)
    assert last(model.answer("hi", GREEDY, 0)).note == ""


def test_closing_keeps_partial_text_and_an_unstarted_answer_adds_nothing(model: Conversation) -> None:
    answers = model.answer("tell me about rain", GREEDY, 0)
    begun = [next(answers) for _ in range(3)][-1]
    answers.close()
    assert begun.stop == "stopped" and model.history[1] == {"role": "assistant", "content": begun.text}
    model.answer("hi", GREEDY, 0).close()
    assert len(model.history) == 2


def test_streamed_text_never_ends_within_a_utf8_character(model: Conversation) -> None:
    tokens = [
        *model.engine.tokenizer("né 你好 🙂", add_special_tokens=False)["input_ids"],
        *model.engine.contract.eos,
    ]
    assert len(tokens) > 12, "characters of several tokens"
    model.engine.stream = lambda request: iter(tokens)  # type: ignore[method-assign]
    texts = [answer.text for answer in model.answer("hi", GREEDY, 0)]
    assert not any("\ufffd" in text for text in texts) and {"né", "né 你", "né 你好", "né 你好 🙂"} <= set(
        texts
    )


def test_prompt_over_the_context_length_is_an_error_and_answers_are_truncated_to_it(
    model: Conversation,
) -> None:
    room = len(model.engine.encode_prompt(Prompt("", ({"role": "user", "content": "hi"},))))
    model.engine.model.config.max_position_embeddings = room + 3
    assert last(model.answer("hi", Settings(0.0, 100), 0)).note == "cut at 3 tokens"
    refused = last(model.answer("hi", GREEDY, 0))
    assert (
        refused.stop == "error"
        and f"context length is {room + 3}" in refused.error
        and len(model.history) == 2
    )


def test_chat_template_error_becomes_the_answers_error(model: Conversation) -> None:
    model.engine.tokenizer.chat_template = "{{ raise_exception('no user role') }}"
    assert "no user role" in last(model.answer("hi", GREEDY, 0)).error
