"""Images of a prompt. A mark in a message, `<image:0123456789abcdef>`, names an image by a digest of its
content; the prompt's `inputs["images"]` maps the digest to the image as a data URL. So whatever compares
texts (duplicates, splits, digests of prompts) tells prompts about different images apart.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ratchet.components.errors import ContractError
from ratchet.components.types import Message, Prompt

if TYPE_CHECKING:
    from ratchet.components.text.tokenizer import Tokenizer

MARK = re.compile(r"<image:([0-9a-f]{16})>")
PLACE = chr(0xFDD1)
"""Stands for an image in a message that is about to be rendered: a character that Unicode keeps out of
texts.
"""


def digest_of(url: str) -> str:
    """Name of an image in marks: the first 16 digits of the SHA-256 of its data URL."""
    return hashlib.sha256(url.encode()).hexdigest()[:16]


def mark_of(url: str) -> str:
    return f"<image:{digest_of(url)}>"


def images_of(prompt: Prompt) -> tuple[str, ...]:
    """The images of a prompt as data URLs, in the order of their marks, with repetitions."""
    images = prompt.inputs.get("images") or {}
    marks = [name for m in prompt.messages for name in MARK.findall(m["content"])] if images else []
    return tuple(images[name] for name in marks)


def showing(name: str, images: Sequence[str]) -> Prompt:
    """A prompt that shows the images and says nothing else."""
    if not images:
        return Prompt(name, ())
    content = "".join(map(mark_of, images))
    return Prompt(
        name, ({"role": "user", "content": content},), inputs={"images": {digest_of(u): u for u in images}}
    )


def placed(tokenizer: Tokenizer, prompt: Prompt) -> Sequence[Message]:
    """The prompt's messages with `PLACE` for every image. `ContractError` if the tokenizer's model takes
    text only, or if a mark has no image.
    """
    images = prompt.inputs.get("images") or {}
    if images and image_text(tokenizer) is None:
        raise ContractError(
            f"prompt {prompt.id!r} shows {len(images)} images, and the model takes text only; use a "
            "vision-language model, or leave the images out of the data"
        )
    messages = placed_marks(tokenizer, prompt.messages)
    if messages is not prompt.messages:
        for name in (name for m in prompt.messages for name in MARK.findall(m["content"])):
            if name not in images:
                raise ContractError(f"prompt {prompt.id!r} has a mark of image {name}, and not the image")
    return messages


def placed_marks(tokenizer: Tokenizer, messages: Sequence[Message]) -> Sequence[Message]:
    """The messages with `PLACE` for every mark, for a model that takes images, so that their tokens can be
    counted without the images.
    """
    if image_text(tokenizer) is None:
        return messages
    return [{"role": m["role"], "content": MARK.sub(PLACE, m["content"])} for m in messages]


def image_text(tokenizer: Tokenizer) -> str | None:
    """What the model's tokenizer reads as one image: its image token, once for every place. None if the
    model takes text only.
    """
    return getattr(tokenizer, "image_text", None)
