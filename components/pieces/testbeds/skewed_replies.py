"""Testbed `skewed_replies`: demonstrations with several right replies to a prompt, some of them rare."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from ratchet.components.data.tiny_language import OPENERS, SUBJECTS
from ratchet.components.piece import piece
from ratchet.components.pieces.testbeds.two_camps import DRY, WARM
from ratchet.components.recipes.ranges import Count, Natural, NotNegative

HELD_OUT = 64
"""Prompts of the test split, which are not trained on."""


@piece(paper="arXiv:2409.01369")
def skewed_replies(
    *, size: Count = 160, power: NotNegative = 1.5, seed: Natural = 0
) -> Iterator[dict[str, Any]]:
    """Demonstrations {id, prompt, completion, split} with the split `train`, at most 176: one of eight warm
    sentences replies to a question, one of eight dry ones to a statement, the k-th of them with a frequency
    in proportion to k^-`power`. Each prompt occurs once. 64 rows of `test` {id, prompt, answer, meta, split}
    have other prompts; `meta.accepted` lists the eight right replies.

    Shows: whether imitation from few demonstrations keeps the rare replies and stays right. Does not show:
    diversity of content, long answers, or replies that are right to a degree.
    """
    rng = random.Random(f"skewed_replies {seed}")
    replies = [[text.format("it") for text in rng.sample(texts, len(texts))] for texts in (WARM, DRY)]
    weights = [(rank + 1) ** -power for rank in range(len(WARM))]
    prompts = [wording.format(subject) for wording in OPENERS for subject in SUBJECTS]
    rng.shuffle(prompts)
    train = prompts[HELD_OUT:][:size]
    for i, text in enumerate((*train, *prompts[:HELD_OUT])):
        right = replies[not text.endswith("?")]
        message = [{"role": "user", "content": text}]
        if i < len(train):
            [reply] = rng.choices(right, weights)
            completion = [{"role": "assistant", "content": reply}]
            yield {"id": f"skewed-{seed}-{i}", "prompt": message, "completion": completion, "split": "train"}
        else:
            own = {"answer": right[0], "meta": {"accepted": right}, "split": "test"}
            yield {"id": f"skewed-{seed}-{i}", "prompt": message, **own}
