"""What an answer copies from its prompt: a policy that repeats question and instruction is relevant and fluent for nothing."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from ratchet.components.types import Prompt

RUN = 5
"""Items in a row that make a copy; a phrase that an instruction demands is mostly shorter."""


def copied(items: Sequence[Hashable], source: Sequence[Hashable], run: int = RUN) -> list[bool]:
    """Whether each item (word or token) lies in a run of `run` items that stands somewhere in `source`."""
    known = {tuple(source[i : i + run]) for i in range(len(source) - run + 1)}
    found = [False] * len(items)
    for i in range(len(items) - run + 1):
        if tuple(items[i : i + run]) in known:
            found[i : i + run] = [True] * run
    return found


def source(prompt: Prompt) -> str:
    """The last message without the phrases that its instruction demands (`meta["instruction"]["params"]`): saying those is no copy."""
    text = prompt.messages[-1]["content"]
    for value in prompt.meta.get("instruction", {}).get("params", {}).values():
        for phrase in [value] if isinstance(value, str) else value if isinstance(value, list) else []:
            text = text.replace(phrase, " ¶ ")  # a mark that no answer has
    return text
