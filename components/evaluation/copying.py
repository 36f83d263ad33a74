"""Detection of text copied from the prompt: repeating question and instruction can look relevant and
fluent.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from ratchet.components.types import Prompt

RUN = 5
"""Minimum length of a copied run; phrases required by an instruction are usually shorter."""


def copied(items: Sequence[Hashable], source: Sequence[Hashable], run: int = RUN) -> list[bool]:
    """For each item (word or token), whether it lies in a run of `run` items that occurs in `source`."""
    known = {tuple(source[i : i + run]) for i in range(len(source) - run + 1)}
    found = [False] * len(items)
    for i in range(len(items) - run + 1):
        if tuple(items[i : i + run]) in known:
            found[i : i + run] = [True] * run
    return found


def source(prompt: Prompt) -> str:
    """The last message of the prompt without the phrases that its instruction requires
    (`meta["instruction"]["params"]`): repeating those is not copying.
    """
    text = prompt.messages[-1]["content"]
    for value in prompt.meta.get("instruction", {}).get("params", {}).values():
        for phrase in [value] if isinstance(value, str) else value if isinstance(value, list) else []:
            text = text.replace(phrase, " ¶ ")  # a separator that occurs in no answer
    return text
