"""Interactive conversation with one model: message history and streamed answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from ratchet.components.errors import ContractError, RatchetError
from ratchet.components.inference.torch import TorchEngine
from ratchet.components.types import Message, Prompt, Request


@dataclass
class Settings:
    """Sampling settings. `tokens`: maximum answer length."""

    temperature: float = 0.7
    tokens: int = 256


@dataclass
class Answer:
    """An answer so far. `stop` is empty while streaming, then end, length, stopped or error (described by
    `error`).
    """

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    stop: str = ""
    error: str = ""

    @property
    def note(self) -> str:
        """How the answer ended, unless by its end-of-turn token."""
        return {
            "length": f"cut at {len(self.tokens)} tokens",
            "stopped": "stopped",
            "error": f"error: {self.error}",
        }.get(self.stop, "")


@final
class Conversation:
    """A model in the torch engine and the message history."""

    def __init__(self, path: Path) -> None:
        self.engine = TorchEngine(path, rows=1, precision="bfloat16")
        self.history: list[Message] = []

    def answer(self, question: str, settings: Settings, seed: int) -> Iterator[Answer]:
        """Yield the answer after each token, without incomplete UTF-8 characters. Once a token was generated,
        the exchange is added to the history, also with the partial answer of an iterator that is closed early
        or ends with an error. A `RatchetError` becomes an answer with `stop="error"`.
        """
        answer, messages = Answer(), [*self.history, Message(role="user", content=question)]
        try:
            request = self._request(messages, settings, seed)
            for token in self.engine.stream(request):
                answer.tokens.append(token)
                answer.text = self.engine.decode(answer.tokens).rstrip("\ufffd")
                yield answer
            answer.text = self.engine.decode(answer.tokens)
            answer.stop = "end" if answer.tokens[-1] in self.engine.contract.eos else "length"
        except RatchetError as error:
            answer.stop, answer.error = "error", str(error)
        except GeneratorExit:
            answer.stop = "stopped"
            raise
        finally:
            if answer.tokens:
                self.history = [*messages, Message(role="assistant", content=answer.text)]
        yield answer

    def _request(self, messages: list[Message], settings: Settings, seed: int) -> Request:
        """`ContractError` if the chat template rejects the messages or the context length is exceeded."""
        tokens = self.engine.encode_prompt(Prompt("", tuple(messages)))
        longest = (
            getattr(self.engine.model.config, "max_position_embeddings", None)
            or len(tokens) + settings.tokens
        )
        if len(tokens) >= longest:
            raise ContractError(
                f"the conversation has {len(tokens)} tokens, the model's context length is {longest}; "
                "start a new one"
            )
        return Request(
            tokens,
            max_tokens=min(settings.tokens, longest - len(tokens)),
            temperature=settings.temperature,
            seed=seed,
        )
