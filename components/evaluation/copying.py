"""What an answer copies from its prompt: a policy that repeats question and instruction is relevant and fluent for nothing."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

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
