"""Testbed `tiny_pairs`: preference pairs of the tiny language."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from ratchet.components.data.tiny_language import RUDE
from ratchet.components.data.tiny_language import question as ask
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count, Natural


@piece()
def tiny_pairs(*, size: Count = 500, seed: Natural = 0) -> Iterator[dict[str, Any]]:
    """Preference pairs {id, prompt, chosen, rejected} on questions of the tiny language: the right answer
    against a wrong or a rude one.

    Shows: whether a preference loss or a reward model separates right from wrong, and the whole pipeline with
    a reward model. Does not show: effects of noisy or ambiguous labels (there are none), nor the quality of
    answers: the tiny model cannot answer these questions before training.
    """
    rng = random.Random(f"tiny_pairs {seed}")
    for number in range(size):
        _, question, answer, wrong = ask(rng)
        yield {
            "id": f"tiny-pair-{seed}-{number}",
            "prompt": [{"role": "user", "content": question}],
            "chosen": [{"role": "assistant", "content": answer}],
            "rejected": [{"role": "assistant", "content": wrong if rng.random() < 0.5 else rng.choice(RUDE)}],
        }
