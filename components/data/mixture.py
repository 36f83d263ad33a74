"""Mixtures of several data sources: `limit` caps the training records of a source, `weight` is its share in
the mixture.

With weights, the mixture is as large as the scarcest source allows: weights 3 and 1 over 1,000 and 1,000
records give 1,000 and 333. Records are chosen by a hash of the data seed and the record id. Held-out records
are neither capped nor weighted.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ratchet.components.data.parsing import parse, unique
from ratchet.components.data.published import one_split, training
from ratchet.components.data.records import Conversation, FilterResult, Rejected
from ratchet.components.errors import DataError, RatchetError
from ratchet.components.recipes.sections import Data, DataSource
from ratchet.components.types import Group

ORDER = ("test", "validation", "", "train", "benchmark")
"""Held-out records come first, since the first of two duplicates is kept; so do those of other splits, unless
they are for training.
"""


def read_sources(data: Data, paths: Sequence[Path], seed: int, most: int | None = None) -> FilterResult:
    """Records of all sources (of `most` rows per file). With several sources, each record has its source's
    label, also as prefix of its id.
    """
    kept: list[Conversation] = []
    dropped: list[Rejected] = []
    changed: Counter[str] = Counter()
    trained = training(data.splits)
    with _addresses(*zip(paths, data.every_source, strict=True)):
        alone = one_split(data.every_source, paths)
    for path, one, label in zip(paths, data.every_source, data.labels, strict=True):
        with _addresses((path, one)):
            found = parse(
                path,
                one.parser,
                one.columns,
                config=one.config,
                splits=one.splits,
                most=most,
                alone=alone,
            )
        changed.update(found.changed)
        name = one.source.rpartition("/")[2] or path.name  # the path of our copy is another in each home
        records = list(found.kept)
        rejected = [replace(d, detail=d.detail.replace(str(path), name)) for d in found.dropped]
        if data.sources:
            records = [
                replace(
                    r,
                    id=f"{label}-{r.id}",
                    source=label,
                    meta={**r.meta, **({"source": r.source} if r.source else {})},
                )
                for r in records
            ]
            rejected = [replace(d, id=f"{label}-{d.id}", source=label) for d in rejected]
        stays = _drawn([r for r in records if r.published in trained], one.limit, seed)
        kept += [r for r in records if r.published not in trained or r.id in stays]
        dropped += [
            *rejected,
            *(
                Rejected(r.id, f"over the limit of {label}", copy=True, source=label)
                for r in records
                if r.published in trained and r.id not in stays
            ),
        ]
    if any(
        record.published not in ("", "benchmark") for record in kept
    ):  # sources without published splits are training data
        kept = [replace(record, published="train") if not record.published else record for record in kept]
    places = {name: ORDER.index("train") for name in trained} | {name: i for i, name in enumerate(ORDER)}
    return unique(FilterResult(sorted(kept, key=lambda r: places.get(r.published, 0)), dropped, changed))


@contextlib.contextmanager
def _addresses(*sources: tuple[Path, DataSource]) -> Iterator[None]:
    """Errors name the user's addresses, not the paths of our copies."""
    try:
        yield
    except RatchetError as error:
        text = str(error)
        for path, one in sorted(sources, key=lambda source: len(str(source[0])), reverse=True):
            text = text.replace(str(path), one.source or str(path))
        raise type(error)(text) from error


def mixed(data: Data, records: Sequence[Conversation], seed: int) -> FilterResult:
    """The records in proportion to the weights. `DataError` if no record is for training."""
    splits = training(data.splits)
    trained = [record for record in records if record.published in splits]
    have = Counter(record.source for record in trained)
    weights = {
        label: one.weight
        for label, one in zip(data.labels, data.sources, strict=True)
        if one.weight and have[label]
    }
    if not weights:
        raise DataError(
            "data.sources: no source with a `weight` has a record for training; their published splits are "
            f"{', '.join(sorted({repr(record.published) for record in records}))}, and those for training "
            f"{', '.join(sorted(map(repr, splits)))}: set data.splits.<split>.split, or remove the weights"
        )
    unit = min(have[label] / weight for label, weight in weights.items())
    stays = set[str]()
    for label, weight in weights.items():
        stays |= _drawn([r for r in trained if r.source == label], max(1, round(unit * weight)), seed)
    kept = [r for r in records if r.published not in splits or r.id in stays]
    return FilterResult(
        kept,
        [Rejected(r.id, f"over the weight of {r.source}", copy=True) for r in trained if r.id not in stays],
    )


def report_sources(
    data: Data, records: Sequence[Conversation], built: Mapping[str, Sequence[Group]]
) -> dict[str, Any]:
    """Per source: address, number of records read, and number of groups per split."""
    return {
        label: {
            "source": one.source,
            "records": sum(r.source == label for r in records),
            "groups": {
                name: n
                for name, groups in built.items()
                if (n := sum(group.prompt.source == label for group in groups))
            },
        }
        for one, label in zip(data.sources, data.labels, strict=True)
    }


def _drawn(records: Sequence[Conversation], count: int | None, seed: int) -> set[str]:
    order = sorted(
        (r.id for r in records), key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).digest()
    )
    return set(order[:count])
