"""Text methods of every engine: messages and text to token ids and back, with the engine's tokenizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ratchet.components.text import chat
from ratchet.components.types import Group, Message, Prompt

if TYPE_CHECKING:
    from ratchet.components.text.tokenizer import Tokenizer


class Codec:
    """Encoding and decoding with `tokenizer`, which the engine sets, and its chat template. Token ids are
    lists of whole numbers.
    """

    tokenizer: Tokenizer

    def encode(self, group: Group) -> Group:
        """The group with `inputs["tokens"]` (T), token ids of the prompt and what follows it, and `mask` (T),
        True on tokens of the assistant after the prompt, in each trajectory. One that has tokens or actions
        stays as it is.
        """
        return group.replace([chat.encode(self.tokenizer, group.prompt, t) for t in group.trajectories])

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        """Token ids of the prompt's messages and of the template's beginning of an answer (the generation
        prompt); what `encode` gives for a continuation begins with them.
        """
        return chat.encode_prompt(self.tokenizer, prompt)

    def encode_reply(self, messages: Sequence[Message], *, ended: bool = True) -> list[int]:
        """Token ids that follow a sampled answer before the next one is sampled: `messages`, such as an
        observation, and the beginning of the next answer. `ended`: the answer has its end-of-turn token; if
        not, the ids begin with it.
        """
        return chat.encode_reply(self.tokenizer, messages, ended=ended)

    def encode_text(self, text: str) -> list[int]:
        """Token ids of text inside a turn."""
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def decode(self, tokens: Sequence[int]) -> str:
        """Text of sampled tokens, without special tokens such as the end of turn."""
        return chat.decode_answer(self.tokenizer, tokens)

    def offsets(self, tokens: Sequence[int]) -> list[tuple[int, int]]:
        """The range of characters of each token in `decode(tokens)`: the first and the one after the last."""
        return chat.offsets(self.tokenizer, tokens)
