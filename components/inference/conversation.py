"""A conversation with one model: its history, and answers that grow token by token."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from ratchet.components.errors import ContractError, RatchetError
from ratchet.components.inference.torch import TorchEngine
from ratchet.components.types import Message, Request


@dataclass
class Settings:
    """How answers are sampled; `tokens` is the most an answer has. `system` is the first message, unless it is empty."""

    temperature: float = 0.7
    tokens: int = 256
    system: str = ""


@dataclass
class Answer:
    """An answer as far as it has come. `stop` is empty while it is written, then end, length, stopped or error (and `error` says why)."""

    text: str = ""
    tokens: list[int] = field(default_factory=list)
    stop: str = ""
    error: str = ""

    @property
    def note(self) -> str:
        """How the answer ended, unless it ended by itself."""
        return {"length": f"cut at {len(self.tokens)} tokens", "stopped": "stopped", "error": f"error: {self.error}"}.get(self.stop, "")


@final
class Conversation:
    """A model, loaded into the built-in engine, and the messages so far."""

    def __init__(self, path: Path) -> None:
        self.engine = TorchEngine(path, rows=1, precision="bfloat16")
        self.history: list[Message] = []

    def answer(self, question: str, settings: Settings, seed: int) -> Iterator[Answer]:
        """The answer after each token, without the bytes of an incomplete character. The exchange joins the history when the iterator
        ends, and with what there is of the answer when it is closed before. An error of ours is an answer that says so."""
        answer, asked = Answer(), [*self.history, Message(role="user", content=question)]
        try:
            request = self._request(asked, settings, seed)
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
                self.history = [*asked, Message(role="assistant", content=answer.text)]
        yield answer

    def _request(self, messages: list[Message], settings: Settings, seed: int) -> Request:
        """`ContractError` where the template refuses the messages or the model cannot read as many tokens."""
        from jinja2 import TemplateError

        system = [Message(role="system", content=settings.system)] if settings.system else []
        try:
            tokens = self.engine.encode_prompt([*system, *messages])
        except TemplateError as error:
            raise ContractError(f"the chat template refuses the conversation ({error}); without a system message it may not") from None
        longest = getattr(self.engine.model.config, "max_position_embeddings", None) or len(tokens) + settings.tokens
        if len(tokens) >= longest:
            raise ContractError(f"the conversation has {len(tokens)} tokens and the model reads {longest}; begin anew")
        return Request(tokens, max_tokens=min(settings.tokens, longest - len(tokens)), temperature=settings.temperature, seed=seed)
