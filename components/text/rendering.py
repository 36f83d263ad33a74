"""Rendering of conversations by the model's chat template, and its tokens."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from ratchet.components.errors import ContractError
from ratchet.components.text.images import PLACE, image_text
from ratchet.components.types import Message

if TYPE_CHECKING:
    from ratchet.components.text.tokenizer import Tokenizer

MARK = chr(0xFDD0)
"""A character that Unicode keeps out of texts."""


@dataclass(frozen=True)
class Piece:
    """A segment of rendered text with its tokens. `message`: index of its assistant message, or None."""

    text: str
    tokens: tuple[int, ...]
    message: int | None


def rendered_pieces(
    tokenizer: Tokenizer, messages: Sequence[Message], name: str, *, generation: bool = False
) -> list[Piece]:
    """The rendering split before each assistant content and after its end-of-turn token. `ContractError` if
    the template cannot be split this way, or if the tokens do not decode to the rendering.
    """
    messages, mark = with_marks(tokenizer, messages)
    full = render(tokenizer, messages, generation=generation)
    spans: list[tuple[str, int | None]] = []
    at = 0
    for start, stop, i in _answers(tokenizer, messages, full, name):
        spans += [(full[at:start], None), (full[start:stop], i)]
        at = stop
    spans.append((full[at:], None))
    spans = [(text, message) for text, message in spans if text]
    parts = [part for text, _ in spans for part in text.split(mark)]
    ids: list[list[int]] = tokenizer(parts, add_special_tokens=False)["input_ids"] if parts else []
    encoded = iter(ids)
    pieces = [
        Piece(text.replace(mark, ""), tuple(t for _ in text.split(mark) for t in next(encoded)), message)
        for text, message in spans
    ]
    full = full.replace(mark, "")
    back = tokenizer.decode(
        [t for p in pieces for t in p.tokens], skip_special_tokens=False, clean_up_tokenization_spaces=False
    )
    if back != full:
        at = next(
            (i for i, (a, b) in enumerate(zip(back, full, strict=False)) if a != b), min(len(back), len(full))
        )
        raise ContractError(
            f"prompt {name!r}: the tokens do not decode to the template's rendering; first difference at "
            f"character {at}: "
            f"expected {full[max(at - 40, 0) : at + 40]!r}, got {back[max(at - 40, 0) : at + 40]!r}. "
            "The tokenizer is lossy (a normaliser?); use a lossless one"
        )
    return pieces


def _answers(
    tokenizer: Tokenizer, messages: Sequence[Message], full: str, name: str
) -> list[tuple[int, int, int]]:
    """(start, end, index) of each assistant content with its end-of-turn token in the rendering `full`."""
    eos = tokenizer.eos_token
    cuts: list[tuple[int, int, int]] = []
    for i, message in enumerate(messages):
        if message["role"] != "assistant":
            continue
        head = render(tokenizer, messages[:i], generation=True)
        stop = full.find(eos, len(head))
        if not full.startswith(head):
            raise ContractError(
                f"prompt {name!r}: the chat template renders the messages before answer {i} differently "
                "when the answer "
                "follows, so the prompt is not a prefix of the conversation. Expected a "
                f"prefix\n{head[-300:]!r}\n"
                f"got\n{full[: len(head)][-300:]!r}\nUse a template that renders each turn on its own"
            )
        if stop < 0:
            raise ContractError(
                f"prompt {name!r}: the chat template writes no eos_token {eos!r} after answer {i}, so the "
                "model would not learn to "
                "stop. Set eos_token to the end-of-turn token of this template"
            )
        cuts.append((len(head), stop + len(eos), i))
    return cuts


def rendered_tokens(tokenizer: Tokenizer, messages: Sequence[Message], *, generation: bool) -> list[int]:
    """Token ids of the whole rendering."""
    messages, mark = with_marks(tokenizer, messages)
    parts = render(tokenizer, messages, generation=generation).split(mark)
    return [t for tokens in tokenizer(parts, add_special_tokens=False)["input_ids"] for t in tokens]


def with_marks(tokenizer: Tokenizer, messages: Sequence[Message]) -> tuple[Sequence[Message], str]:
    """The messages with a mark within every special token that their texts spell, and the mark, which no text
    contains. A rendering that is tokenised in parts, split at the marks, has the special tokens of the
    template alone.
    """
    special = _special(tokenizer)
    mark = MARK
    while any(mark in m["content"] for m in messages):
        mark += MARK
    if special is None or not any(special.search(m["content"]) for m in messages):
        return messages, mark
    return [
        {"role": m["role"], "content": special.sub(lambda found: found.group() + mark, m["content"])}
        for m in messages
    ], mark


@lru_cache(maxsize=8)
def _special(tokenizer: Tokenizer) -> re.Pattern[str] | None:
    """Pattern of the first character of each special token of a tokenizer; None if it has none."""
    added = [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]
    tokens = {token for token in (*tokenizer.all_special_tokens, *added) if len(token) > 1}
    if not tokens:
        return None
    return re.compile(
        "|".join(f"{re.escape(token[0])}(?={re.escape(token[1:])})" for token in sorted(tokens))
    )


def render(tokenizer: Tokenizer, messages: Sequence[Message], *, generation: bool = False) -> str:
    """The text of `messages`, with the model's image tokens in every `PLACE`. `ContractError` if the template
    refuses them, as some do a system message.
    """
    from jinja2 import TemplateError

    try:
        text = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=generation)
        return text.replace(PLACE, image_text(tokenizer) or PLACE)
    except TemplateError as error:
        roles = ", ".join(dict.fromkeys(message["role"] for message in messages))
        raise ContractError(
            f"the model's chat template refuses messages of the roles {roles}: {error}; leave that role "
            "out (in data, a `topic` is a system message, too), or put a chat_template.jinja that "
            "allows it into the model's folder"
        ) from None
