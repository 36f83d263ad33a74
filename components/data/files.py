"""Reading rows of data files: JSONL (`.jsonl`, `.jsonl.gz`), JSON, CSV, TSV, Parquet and Arrow; a file or a
folder of files.
"""

from __future__ import annotations

import csv
import gzip
import json
import sys
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from ratchet.components.data.groups import parquet_rows
from ratchet.components.errors import DataError, SourceError

SUFFIXES = (".jsonl", ".json", ".parquet", ".arrow", ".csv", ".tsv", ".gz")
METADATA = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")
"""Metadata files of the library `datasets`."""


def data_files(path: Path) -> list[Path]:
    """Data files of a path: the file itself, or all data files in a folder, sorted, without hidden files and
    metadata of `datasets`.
    """
    if not path.exists():
        raise SourceError(f"there is no file or folder {path}")
    files = (
        [path]
        if path.is_file()
        else sorted(
            p
            for p in path.rglob("*")
            if p.suffix in SUFFIXES
            and p.is_file()
            and p.name not in METADATA
            and not any(part.startswith(".") for part in p.relative_to(path).parts)
        )
    )
    if not files:
        raise SourceError(f"{path} holds no {', '.join(SUFFIXES)} file")
    if files[0].suffix not in SUFFIXES:
        raise SourceError(f"{path} is not a data file; expected one of {', '.join(SUFFIXES)}")
    return files


def read_rows(file: Path) -> Iterator[tuple[str, Any]]:
    """(location, row) for every row of a file, counted from 1. An unreadable line yields a `DataError`
    instead of its row; an unreadable file raises one.
    """
    if file.suffix in (".jsonl", ".gz"):
        for number, line in enumerate(_lines(file), start=1):
            if line.strip():
                where = f"{file}, line {number}"
                try:
                    yield where, _decode(line)
                except ValueError as error:
                    yield where, DataError(f"not valid JSON: {error}")
        return
    rows = {".parquet": parquet_rows, ".arrow": _arrow, ".json": _json, ".csv": _table, ".tsv": _table}[
        file.suffix
    ](file)
    yield from ((f"{file}, row {number}", row) for number, row in enumerate(rows, start=1))


def _lines(file: Path) -> Iterator[bytes]:
    if file.suffix != ".gz":
        with file.open("rb") as lines:
            yield from lines
        return
    try:
        with gzip.open(file, "rb") as lines:
            yield from lines
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{file} is an incomplete or invalid gzip file: {error}") from error


def _decode(raw: bytes) -> Any:
    """Decode JSON. `ValueError` for invalid JSON or UTF-8."""
    return json.loads(raw)


def _json(file: Path) -> list[Any]:
    """Rows of a JSON file: a list, an object containing one list (`{"data": [...]}`), or an object of rows
    keyed by id.
    """
    try:
        found = _decode(file.read_bytes())
    except ValueError as error:
        raise DataError(f"{file} is not valid JSON: {error}") from error
    if isinstance(found, list):
        return found
    if isinstance(found, dict):
        lists = [
            value
            for value in found.values()
            if isinstance(value, list) and all(isinstance(row, dict) for row in value)
        ]
        if len(lists) == 1:
            return lists[0]
        if all(isinstance(value, dict) for value in found.values()):
            return [{"id": key, **value} for key, value in sorted(found.items())]
    raise DataError(
        f"{file} holds a JSON {type(found).__name__}, expected a list of rows, or an object of rows keyed "
        "by id"
    )


def _arrow(file: Path) -> Iterable[Any]:
    try:
        with pa.memory_map(str(file)) as source, pa.ipc.open_stream(source) as stream:
            for batch in stream:
                yield from batch.to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{file} is not a readable Arrow stream, as `datasets` saves one: {error}") from error


def _table(file: Path) -> Iterator[dict[str, Any]]:
    """Rows of a CSV or TSV file with a header. Empty cells are None; cells with a JSON list or object are
    decoded.
    """
    csv.field_size_limit(sys.maxsize)
    try:
        with file.open(encoding="utf-8-sig", newline="") as lines:
            for row in csv.DictReader(
                lines, delimiter="\t" if file.suffix == ".tsv" else ",", restkey="(cells without a name)"
            ):
                yield {name: _cell(value) for name, value in row.items()}
    except (csv.Error, UnicodeDecodeError) as error:
        raise DataError(
            f"{file} is not a readable {file.suffix[1:].upper()} file in UTF-8: {error}"
        ) from error


def _cell(value: Any) -> Any:
    if not isinstance(value, str) or not value.strip().startswith(("[", "{")):
        return value or None
    try:
        return json.loads(value)
    except ValueError:
        return value
