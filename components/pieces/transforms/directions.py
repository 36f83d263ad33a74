"""Transform `directions`: asks for a direction of two rewards in the prompt."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace

from ratchet.components.data.conditioning import conditioned
from ratchet.components.data.records import Conversation, CountTokens, FilterResult
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Bool, Finite, Natural

WORDING = "Maximise {first} x first + {second} x second."


@piece(paper="arXiv:2402.18571")
def directions(
    records: Sequence[Conversation],
    count_tokens: CountTokens,
    *,
    lowest: Finite = -45.0,
    highest: Finite = 45.0,
    own: Bool = True,
    seed: Natural = 0,
) -> FilterResult:
    """Give every record a direction v = (cos a, sin a) in `meta["direction"]`, with the angle a uniform
    between `lowest` and `highest` degrees by a hash of seed and id, and a system message with its two weights
    as integers, round(100 v) (DPA). `own` false names the mean direction in every prompt: the control.
    """
    kept = []
    for record in records:
        share = int.from_bytes(hashlib.sha256(f"{seed}/{record.id}".encode()).digest()[:8]) / 2**64
        angle = math.radians(lowest + share * (highest - lowest))
        vector = [math.cos(angle), math.sin(angle)]
        first, second = vector if own else (1.0, 0.0)
        text = WORDING.format(first=round(100 * first), second=round(100 * second))
        asked = conditioned(record, text)
        kept.append(replace(asked, meta={**record.meta, "direction": vector}))
    return FilterResult(kept)
