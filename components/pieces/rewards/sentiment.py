"""A programmatic sentiment score: the gold reward of the controlled-sentiment testbed."""

from __future__ import annotations

import math
import re

from ratchet.components.piece import each, piece
from ratchet.components.types import Prompt, Trajectory

POSITIVE = frozenset(["fine", "glad", "good", "great", "like", "love", "lot", "nice", "thank", "well", "yes"])
NEGATIVE = frozenset(["bye", "hate", "no", "not", "why"])


@piece(writes=("reward.sentiment", "reward.sentiment.status"), paper="arXiv:2305.18290")
@each
def sentiment(prompt: Prompt, trajectory: Trajectory) -> float:
    """sigmoid(distinct positive words - distinct negative words) of the answer, in (0, 1); 1/2 if it has
    neither. It stands for the sentiment classifier of the DPO paper (section 6.1): a graded gold reward that
    a small model can raise within seconds and that repetition does not raise.
    """
    return score(trajectory.text)


def score(text: str) -> float:
    """Sentiment of a text, in (0, 1)."""
    words = set(re.findall(r"[a-z]+", text.lower()))
    return 1 / (1 + math.exp(len(words & NEGATIVE) - len(words & POSITIVE)))
