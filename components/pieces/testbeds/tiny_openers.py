"""Testbed `tiny_openers`: first messages of small talk, for controlled generation."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from ratchet.components.data.tiny_language import OPENERS, SUBJECTS
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Natural


@piece()
def tiny_openers(*, seed: Natural = 0) -> Iterator[dict[str, Any]]:
    """Prompts {id, prompt}: each of 10 wordings with each of 24 subjects, in an order that `seed` shuffles.
    The answers of a small-talk model to them vary, so that a program (`rewards.sentiment`) can grade them.

    Shows: how fast and how far a method raises an exact, graded reward, and what fluency and diversity it
    costs. Does not show: anything on learned rewards, on content, or on prompts of another form; held-out
    prompts are other pairs of the same wordings and subjects.
    """
    texts = [wording.format(subject) for wording in OPENERS for subject in SUBJECTS]
    random.Random(f"tiny_openers {seed}").shuffle(texts)
    for number, text in enumerate(texts):
        yield {"id": f"tiny-opener-{seed}-{number}", "prompt": [{"role": "user", "content": text}]}
