"""Import and export of labels: JSONL, Parquet, Argilla's records and Label Studio's exports."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from ratchet.components.data.parquet import save_table
from ratchet.components.errors import DataError, SourceError
from ratchet.components.labels.labels import Item, Label
from ratchet.components.labels.layouts import argilla, label_studio, rows
from ratchet.components.labels.layouts.common import Decoded, Names
from ratchet.components.storage.store import write_atomic

Layout = Literal["jsonl", "parquet", "argilla", "label_studio"]
LAYOUTS = get_args(Layout)
_MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
TYPES: dict[str, pa.DataType] = {
    "prompt": _MESSAGES,
    "answers": pa.list_(pa.string()),
    "planted": pa.int32(),
    "round": pa.int32(),
    "choice": pa.int32(),
    "order": pa.list_(pa.int32()),
    "seconds": pa.float64(),
    "aspects": pa.map_(pa.string(), pa.int32()),
}
"""Parquet types of the columns that are not strings."""


def export_labels(
    path: Path, items: Sequence[Item], labels: Sequence[Label], layout: Layout | None = None
) -> Path:
    """Write items and labels, atomically; `layout` is known from .jsonl and .parquet. `DataError` for another
    ending without a layout, or for what the layout cannot hold.
    """
    path = Path(path)
    kind = layout or _by_ending(path)
    if kind is None:
        raise DataError(f"{path}: which layout? Expected one of {', '.join(LAYOUTS)}")
    made = {"argilla": argilla, "label_studio": label_studio}.get(kind, rows).encode(items, labels)
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "parquet":
        names = ("item", *rows.ITEM, *rows.LABEL)
        schema = pa.schema([(name, TYPES.get(name, pa.string())) for name in names])
        save_table(pa.Table.from_pylist([_listed(row) for row in made], schema=schema), path)
    elif kind == "jsonl":
        write_atomic(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in made))
    else:
        write_atomic(path, json.dumps(made, ensure_ascii=False, indent=1))
    return path


def import_labels(path: Path, layout: Layout | None = None, names: Names = Names()) -> Decoded:  # noqa: B008
    """Items and labels of a file; `layout` is found from its ending and content if it is not given. `names`:
    fields of a foreign layout. `SourceError` for no file, `DataError` for content that is not in the layout.
    """
    path = Path(path)
    if not path.is_file():
        raise SourceError(f"there is no file {path}")
    kind = layout or _by_ending(path)
    if kind == "parquet":
        try:
            table = pq.read_table(path)
        except pa.ArrowException as error:
            raise DataError(f"{path}: not a Parquet file: {error}") from error
        found = table.to_pylist()
        if argilla.is_flat(found):
            return argilla.decode(found, str(path), names)
        return rows.decode([_mapped(row) for row in found], str(path))
    text = path.read_text(encoding="utf-8-sig", errors="replace")
    if kind == "jsonl":
        return rows.decode(
            [_json(line, f"{path}, line {n}") for n, line in enumerate(text.split("\n"), 1) if line.strip()],
            str(path),
        )
    if path.suffix == ".csv":
        csv.field_size_limit(sys.maxsize)
        content = list(csv.DictReader(io.StringIO(text, newline="")))
    else:
        content = _json(text, str(path))
    kind = kind or _by_content(content)
    if kind is None:
        raise DataError(
            f"{path}: neither Argilla's records (a list of objects with 'fields' and 'responses', or with "
            "'QUESTION.responses') nor a Label Studio export (a list of objects with 'data' and "
            f"'annotations', or rows with {', '.join(map(repr, label_studio.ROW))}); JSONL and Parquet files "
            "end in .jsonl and .parquet"
        )
    return (argilla if kind == "argilla" else label_studio).decode(content, str(path), names)


def _by_ending(path: Path) -> Layout | None:
    return {".jsonl": "jsonl", ".parquet": "parquet"}.get(path.suffix)  # pyright: ignore[reportReturnType]


def _by_content(content: Any) -> Layout | None:
    first = content[0] if isinstance(content, list) and content else None
    if not isinstance(first, dict):
        return None
    if "fields" in first or argilla.is_flat(content):
        return "argilla"
    return "label_studio" if "data" in first or label_studio.is_rows(content) else None


def _json(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise DataError(f"{where}: not valid JSON: {error}") from error


def _listed(row: dict[str, Any]) -> dict[str, Any]:
    """Aspects as pairs: Arrow's maps."""
    return row | {"aspects": None if row["aspects"] is None else list(row["aspects"].items())}


def _mapped(row: dict[str, Any]) -> dict[str, Any]:
    return row | {"aspects": dict(row["aspects"])} if row.get("aspects") is not None else row
