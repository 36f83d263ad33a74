"""A fixed number of records."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from ratchet.components.data.records import Conversation, CountTokens, Dropped, Sifted
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count, Natural


@piece()
def subset(records: Sequence[Conversation], count_tokens: CountTokens, *, count: Count, seed: Natural = 0) -> Sifted:
    """At most `count` records, drawn by a hash of seed and id, in their order. A record that stays does so whatever the others are."""
    order = sorted(records, key=lambda record: hashlib.sha256(f"{seed} {record.id}".encode()).digest())
    chosen = {record.id for record in order[:count]}
    return Sifted([r for r in records if r.id in chosen], [Dropped(r.id, "over the count", copy=True) for r in order[count:]])
