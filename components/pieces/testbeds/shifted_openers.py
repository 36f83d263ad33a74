"""Testbed `shifted_openers`: controlled generation with a second set of prompts from another distribution."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ratchet.components.piece import piece
from ratchet.components.pieces.testbeds.tiny_openers import tiny_openers
from ratchet.components.recipes.ranges import Natural

WORDINGS = (
    "last week my brother told me about {}, and i still think of it",
    "if you had a day for {}, where would it start?",
    "the old man next door never stops with {}",
    "{} or nothing, that is how we are here",
    "before lunch we read a long page on {}",
    "who would have thought that {} costs so much?",
)
SUBJECTS = (
    "horses",
    "bicycles",
    "soup",
    "letters",
    "mountains",
    "clocks",
    "gardens",
    "boats",
    "maps",
    "stars",
)


@piece(paper="arXiv:2310.06452")
def shifted_openers(*, seed: Natural = 0) -> Iterator[dict[str, Any]]:
    """Prompts {id, prompt, split}: those of `tiny_openers` with the split `train`, and 60 of longer, unseen
    wordings about unseen subjects with the split `shifted` (read it with `data.columns: {split: split}`).

    Shows: whether what a method gains on prompts of the training distribution is there on prompts of another
    form. Does not show: shifts of task or language, or anything on learned rewards.
    """
    for row in tiny_openers(seed=seed):
        yield {**row, "split": "train"}
    texts = [wording.format(subject) for wording in WORDINGS for subject in SUBJECTS]
    for number, text in enumerate(texts):
        yield {
            "id": f"shifted-opener-{number}",
            "prompt": [{"role": "user", "content": text}],
            "split": "shifted",
        }
