"""Images in the rows of a data set: taken out of columns and messages, with a mark in the text in their place
(`ratchet.components.text.images`).
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ratchet.components.data.messages import PROMPTS
from ratchet.components.text.images import digest_of, mark_of

COLUMNS = ("images", "image")
PLACEHOLDER = "<image>"
"""Stands for the next of a row's images in its text, as in LLaVA's and Hugging Face's data sets."""
KINDS = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpeg", b"GIF8": "gif", b"RIFF": "webp"}
"""First bytes of a file -> its type."""
URL_PARTS = ("image_url", "input_image", "image")
"""Types of a message's parts that hold an image: those of OpenAI's API and of Hugging Face's templates."""


def without_images(row: Mapping[str, Any]) -> tuple[Mapping[str, Any], dict[str, str]]:
    """A row with marks for its images, and the images: digest -> data URL. Images come from the column
    `images` (a list) or `image`, as bytes, {"bytes": ...} or data URL, and from parts of messages. In the
    text, `<image>` stands for the next image of the columns; without any, they precede the prompt.
    `ValueError` for images that are elsewhere, that cannot be read, or of another number.
    """
    given = next((row[name] for name in COLUMNS if row.get(name) not in (None, [], ())), None)
    listed = given if isinstance(given, (list, tuple)) else [] if given is None else [given]
    urls = [url_of(one) for one in listed]
    found = {digest_of(url): url for url in urls}
    row = {name: value for name, value in row.items() if name not in COLUMNS or given is None}
    for name, value in row.items():
        if isinstance(value, (list, tuple)) and any(isinstance(one, Mapping) for one in value):
            row[name] = [_marked(one, found) for one in value]
    if urls:
        row = _placed(row, urls)
    return row, found


def url_of(image: Any) -> str:
    """An image as a data URL; `ValueError` if it cannot be opened."""
    from ratchet.components.models.images import opened

    if isinstance(image, Mapping):
        image = image.get("bytes") or image.get("url") or image.get("path")
    if isinstance(image, (bytes, bytearray)):
        kind = next((kind for start, kind in KINDS.items() if bytes(image).startswith(start)), "octet-stream")
        image = f"data:image/{kind};base64,{base64.b64encode(image).decode()}"
    if not isinstance(image, str) or not image.startswith("data:"):
        raise ValueError("an image must be in the data, as bytes or data URL, not behind a link or a path")
    opened(image)
    return image


def _marked(message: Any, found: dict[str, str]) -> Any:
    """A message whose parts that are images are texts with their marks; new images are added to `found`."""
    content = message.get("content") if isinstance(message, Mapping) else None
    if not isinstance(content, (list, tuple)):
        return message
    parts = []
    for part in content:
        kind = part.get("type") if isinstance(part, Mapping) else None
        image = part.get(kind) if kind in URL_PARTS else None
        if kind == "image" and image is None:  # its place; the image is in the column
            part = {"type": "text", "text": PLACEHOLDER}
        elif image is not None:
            url = url_of(image)
            found[digest_of(url)] = url
            part = {"type": "text", "text": mark_of(url)}
        parts.append(part)
    return {**message, "content": parts}


def _placed(row: Mapping[str, Any], urls: Sequence[str]) -> dict[str, Any]:
    """The row with the marks of `urls` in place of every `<image>`, or before the prompt."""
    marks = iter(map(mark_of, urls))
    name = next((name for name in PROMPTS if row.get(name) is not None), None)
    if name is None:
        raise ValueError(f"the row has images and no prompt ({', '.join(PROMPTS)})")
    places = sum(text.count(PLACEHOLDER) for text in _texts(row[name]))
    if places not in (0, len(urls)):
        raise ValueError(f"the prompt has {places} times {PLACEHOLDER} for {len(urls)} images")
    before = "" if places else "".join(f"{mark}\n" for mark in marks)
    value, _ = _filled(row[name], marks, before)
    return {**row, name: value}


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts(value.get("content", value.get("value", value.get("text"))))
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _texts(one)


def _filled(value: Any, marks: Iterator[str], before: str) -> tuple[Any, str]:
    """`value` with marks for placeholders, and `before` put before the first text that is not the system's;
    returns what of `before` is left.
    """
    if isinstance(value, str):
        first, *rest = value.split(PLACEHOLDER)
        return before + first + "".join(next(marks) + part for part in rest), ""
    if isinstance(value, Mapping):
        key = next((key for key in ("content", "value", "text") if value.get(key) is not None), None)
        if key is None:
            return value, before
        left = before if value.get("role", value.get("from")) == "system" else ""
        inner, rest = _filled(value[key], marks, "" if left else before)
        return {**value, key: inner}, left or rest
    if isinstance(value, (list, tuple)):
        made = []
        for one in value:
            one, before = _filled(one, marks, before)
            made.append(one)
        return made, before
    return value, before
