"""Layout `rows`: one row a label, with its item's fields; an item without labels is a row without annotator.

JSONL and Parquet hold the same rows. `item` is the item's id; the other names are those of `labels.Item` and
`labels.Label`. Rows of one item have the same prompt and answers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields
from typing import Any

from ratchet.components.errors import DataError
from ratchet.components.labels.labels import Item, Label, from_row
from ratchet.components.labels.layouts.common import Decoded

ITEM = tuple(one.name for one in fields(Item) if one.name != "id")
LABEL = tuple(one.name for one in fields(Label) if one.name != "item")
NEEDED = ("item", "prompt", "answers", "annotator", "choice", "verdict", "order", "seconds")


def encode(items: Sequence[Item], labels: Sequence[Label]) -> list[dict[str, Any]]:
    """The rows, by item and then by label, in their order. `DataError` for a label of no item."""
    of_item: dict[str, list[Label]] = {item.id: [] for item in items}
    for label in labels:
        if label.item not in of_item:
            raise DataError(
                f"label of {label.annotator}: there is no item {label.item!r}; pass its items too"
            )
        of_item[label.item].append(label)
    made = []
    for item in items:
        given = asdict(item)
        about = {"item": given.pop("id"), **given}
        for label in of_item[item.id]:
            made.append(about | {name: value for name, value in asdict(label).items() if name != "item"})
        if not of_item[item.id]:
            made.append(about | dict.fromkeys(LABEL))
    return made


def decode(rows: Iterable[Mapping[str, Any]], where: str) -> Decoded:
    """Items and labels of the rows. `DataError` for a missing name, or two rows that disagree on an item."""
    items, labels = dict[str, Item](), list[Label]()
    for number, row in enumerate(rows, start=1):
        at = f"{where}, row {number}"
        if missing := [name for name in NEEDED if name not in row]:
            raise DataError(
                f"{at}: not a row of labels: no {', '.join(map(repr, missing))}; there are "
                f"{', '.join(map(repr, row))}"
            )
        try:
            given = {name: row[name] for name in ITEM if name in row and row[name] is not None}
            item = from_row(Item, {"id": row["item"], **given})
            if items.setdefault(item.id, item) != item:
                raise DataError(f"item {item.id} differs from an earlier row of the same item")
            if row["annotator"] is not None:
                stored = {name: row[name] for name in LABEL if name in row}
                labels.append(from_row(Label, {"item": item.id, **stored}))
        except DataError as error:
            raise DataError(f"{at}: {error}") from error
    return list(items.values()), labels
