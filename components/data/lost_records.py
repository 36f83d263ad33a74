"""How many records curation may lose before the run stops, or warns. A record is lost if it is dropped and no
copy (`Rejected.copy`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from ratchet.components.data.records import Rejected
from ratchet.components.errors import GateError
from ratchet.components.recipes.sections import Data

WARN_LOST = 0.05
"""Warn if more than this share of records is lost, unless the recipe allows more than the default."""


def check_loss(
    dropped: Sequence[tuple[str, Rejected]],
    records: int,
    limit: float | None,
    where: str,
    file: Path | None,
    remedy: str = "",
) -> list[str]:
    """Warnings: one if more than `WARN_LOST` of `records` records were lost, none if the recipe allows it.
    `GateError` if more than `limit` (a share; None: any number) were. `dropped`: records with the step that
    dropped them; `where`: which records, for the message; `file`: the file with those that were dropped.
    """
    lost = Counter((stage, record.reason) for stage, record in dropped if not record.copy)
    worst = "; ".join(f"{stage}: {reason} ({number})" for (stage, reason), number in lost.most_common(3))
    message = f"{lost.total()} of {records} records ({lost.total() / max(1, records):.1%}) {where}"
    if limit is not None and lost.total() > limit * records:
        first = next(record for _, record in dropped if not record.copy)
        raise GateError(
            f"data.max_dropped: {message}, at most {int(limit * records)} ({limit:.1%}) allowed; by step: "
            f"{worst}. "
            f"{f'See {file}' if file else f'The first is {first.id!r} ({first.explained})'}; "
            f"{remedy or 'fix the data'}, "
            "or raise data.max_dropped"
        )
    allowed = limit is None or limit > (Data.max_dropped or 1)  # any number, or more than the default
    return (
        [f"{message}; by step: {worst}{f'; {remedy}' if remedy else ''}"]
        if lost.total() > WARN_LOST * records and not allowed
        else []
    )
