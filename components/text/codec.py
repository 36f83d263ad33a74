"""Text methods of every engine: messages and text to token ids and back, with the engine's tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ratchet.components.text import chat
from ratchet.components.types import Group, Message, Prompt

if TYPE_CHECKING:
    from ratchet.components.text.tokenizer import Tokenizer


class Codec:
    """Encoding and decoding with `tokenizer` and its chat template."""

    tokenizer: Tokenizer

    def encode(self, group: Group) -> Group:
        """Add `inputs["tokens"]` and `mask` to trajectories without tokens."""
        return group.replace([chat.encode(self.tokenizer, group.prompt, t) for t in group.trajectories])

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        """Token ids of the prompt's messages with the generation prompt."""
        return chat.encode_prompt(self.tokenizer, prompt)

    def encode_reply(self, messages: Sequence[Message], *, ended: bool = True) -> list[int]:
        """Token ids between an answer and the next one, see `chat.encode_reply`."""
        return chat.encode_reply(self.tokenizer, messages, ended=ended)

    def encode_text(self, text: str) -> list[int]:
        """Token ids of text inside a turn."""
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of an answer."""
        return chat.decode_answer(self.tokenizer, tokens)

    def offsets(self, tokens: Sequence[int]) -> list[tuple[int, int]]:
        """First and last character (exclusive) of each token in `decode(tokens)`."""
        return chat.offsets(self.tokenizer, tokens)
