"""Several sources as one data set: `limit` caps what is trained on of a source, `weight` is its share in the mixture.

With weights the mixture is as large as the source that runs out first lets it be: weights 3 and 1 over 1,000 and 1,000 records are 1,000 and 333.
Which records stay is decided by a hash of the data's seed and the record's id. What is held out is neither capped nor weighed.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ratchet.components.data.parsing import parse, unique
from ratchet.components.data.published import TRAINING
from ratchet.components.data.records import Conversation, Dropped, Sifted
from ratchet.components.errors import RatchetError
from ratchet.components.recipes.sections import Data
from ratchet.components.types import Group

ORDER = ("test", "validation", "", "train", "benchmark")
"""Held-out records stand first: of two that say the same, the first stays."""


def read_sources(data: Data, paths: Sequence[Path], seed: int, most: int | None = None) -> Sifted:
    """The records of every source (of `most` rows of each file), each with the source's label where there are several, which then begins its id too."""
    kept: list[Conversation] = []
    dropped: list[Dropped] = []
    changed: Counter[str] = Counter()
    for path, one, label in zip(paths, data.every_source, data.labels, strict=True):
        try:
            found = parse(path, one.parser, one.columns, config=one.config, splits=one.splits, most=most)
        except RatchetError as error:  # about the user's file, not about our copy of it
            raise type(error)(str(error).replace(str(path), one.source or str(path))) from error
        changed.update(found.changed)
        if data.sources:
            found = Sifted([replace(r, id=f"{label}-{r.id}", source=label, meta={**r.meta, **({"source": r.source} if r.source else {})})
                            for r in found.kept], [replace(d, id=f"{label}-{d.id}") for d in found.dropped])
        stays = _drawn([r for r in found.kept if r.published in TRAINING], one.limit, seed)
        kept += [r for r in found.kept if r.published not in TRAINING or r.id in stays]
        dropped += [*found.dropped, *(Dropped(r.id, f"over the limit of {label}", copy=True) for r in found.kept
                                      if r.published in TRAINING and r.id not in stays)]
    if any(record.published not in ("", "benchmark") for record in kept):  # a source without published splits is for training
        kept = [replace(record, published="train") if not record.published else record for record in kept]
    return unique(Sifted(sorted(kept, key=lambda record: ORDER.index(record.published)), dropped, changed))


def mixed(data: Data, records: Sequence[Conversation], seed: int) -> Sifted:
    """The records in the proportions of the weights."""
    trained = [record for record in records if record.published in TRAINING]
    have = Counter(record.source for record in trained)
    weights = {label: one.weight for label, one in zip(data.labels, data.sources, strict=True) if one.weight and have[label]}
    unit = min(have[label] / weight for label, weight in weights.items())
    stays = set[str]()
    for label, weight in weights.items():
        stays |= _drawn([r for r in trained if r.source == label], max(1, round(unit * weight)), seed)
    kept = [r for r in records if r.published not in TRAINING or r.id in stays]
    return Sifted(kept, [Dropped(r.id, f"over the weight of {r.source}", copy=True) for r in trained if r.id not in stays])


def report_sources(data: Data, records: Sequence[Conversation], built: Mapping[str, Sequence[Group]]) -> dict[str, Any]:
    """Of each source: where from, how many of its records were read, how many groups of each split were made from them."""
    return {label: {"source": one.source, "records": sum(r.source == label for r in records),
                    "groups": {name: n for name, groups in built.items() if (n := sum(group.prompt.source == label for group in groups))}}
            for one, label in zip(data.sources, data.labels, strict=True)}


def _drawn(records: Sequence[Conversation], count: int | None, seed: int) -> set[str]:
    order = sorted((r.id for r in records), key=lambda name: hashlib.sha256(f"{seed} {name}".encode()).digest())
    return set(order[:count])
