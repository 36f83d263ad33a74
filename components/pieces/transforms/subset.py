"""Transform `subset`: a fixed number of records."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from ratchet.components.data.records import Conversation, CountTokens, FilterResult, Rejected
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count, Natural


@piece()
def subset(
    records: Sequence[Conversation], count_tokens: CountTokens, *, count: Count, seed: Natural = 0
) -> FilterResult:
    """At most `count` records, chosen by a hash of seed and id, in their original order. The choice of a
    record does not depend on the others' order.
    """
    order = sorted(records, key=lambda record: hashlib.sha256(f"{seed} {record.id}".encode()).digest())
    chosen = {record.id for record in order[:count]}
    return FilterResult(
        [r for r in records if r.id in chosen],
        [Rejected(r.id, f"more than {count} records", copy=True) for r in order[count:]],
    )
