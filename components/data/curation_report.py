"""What curation writes beside the splits: dropped records, and reports on ratings and pairs."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ratchet.components.data.records import (
    Conversation,
    Rejected,
)
from ratchet.components.types import Group


def write_quarantine(path: Path | None, dropped: Sequence[tuple[str, Rejected]]) -> None:
    """One JSON object per line: id, stage, reason, record (omitted if the source still contains it
    unchanged).
    """
    if path is None:
        return
    lines = [
        json.dumps(
            {"id": d.id, "stage": stage, "reason": d.explained, "record": d.record}, ensure_ascii=False
        )
        + "\n"
        for stage, d in dropped
    ]
    path.write_text("".join(lines), encoding="utf-8", errors="replace")


def rating_report(records: Sequence[Conversation]) -> dict[str, Any]:
    """Number of rated records, and Pearson correlation of ratings with the log of turns and of characters."""
    rated = [
        (r.rating, math.log(len(r.messages)), math.log(1 + len(r.text)))
        for r in records
        if r.rating is not None and r.messages
    ]
    if len(rated) < 3:
        return {"rated": len(rated)}
    import numpy as np

    mean, turns, characters = np.array(rated).T
    common, times = Counter(mean.tolist()).most_common(1)[0]

    def with_rating(values: Any) -> float | None:
        return (
            round(float(np.corrcoef(mean, values)[0, 1]), 4) if mean.std() > 0 and values.std() > 0 else None
        )

    return {
        "rated": len(rated),
        "mean": round(float(mean.mean()), 4),
        "most_common": [common, times],
        "correlation_log_turns": with_rating(turns),
        "correlation_log_characters": with_rating(characters),
    }


def pair_report(groups: Sequence[Group]) -> dict[str, Any]:
    """Share of pairs whose chosen side is longer (0.5 means no length bias), and the number of distinct
    conversations.
    """
    sizes = [
        [sum(len(m["content"]) for m in path.messages) for path in group.trajectories] for group in groups
    ]
    longer = sum(chosen > rejected for chosen, rejected in sizes) + 0.5 * sum(a == b for a, b in sizes)
    conversations = {
        path.meta.get("conversation", f"{group.prompt.id} {i}")
        for group in groups
        for i, path in enumerate(group.trajectories)
    }
    return {
        "pairs": len(groups),
        "chosen_is_longer": round(longer / len(sizes), 4),
        "conversations": len(conversations),
        "positions": dict(sorted(Counter(str(g.prompt.meta.get("position", "")) for g in groups).items())),
    }
