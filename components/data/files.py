"""Reading rows of data files: JSONL, JSON, CSV, TSV (each also with `.gz`), Parquet and Arrow; a file or a
folder of files.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import sys
import zlib
from collections.abc import Iterable, Iterator
from json import JSONDecodeError
from pathlib import Path
from typing import IO, Any, cast, final

import pyarrow as pa

from ratchet.components.data.messages import from_json
from ratchet.components.data.parquet import parquet_rows
from ratchet.components.errors import DataError, SourceError

SUFFIXES = (".jsonl", ".json", ".parquet", ".arrow", ".csv", ".tsv", ".gz", ".ndjson")
METADATA = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")
"""Metadata files of the library `datasets`."""
SHOWN = 100
"""Characters of an unreadable row that are shown."""
UTF_16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
TEXTS = (".jsonl", ".json", ".csv", ".tsv")


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
            if p.suffix.lower() in SUFFIXES
            and p.is_file()
            and p.name not in METADATA
            and not any(part.startswith(".") for part in p.relative_to(path).parts)
        )
    )
    if not files:
        raise SourceError(f"{path} holds no {', '.join(SUFFIXES)} file")
    if files[0].suffix.lower() not in SUFFIXES:
        raise SourceError(f"{path} is not a data file; expected one of {', '.join(SUFFIXES)}")
    return files


@final
class UnreadableRow(DataError):
    """In place of a row that cannot be read: `reason`, why, in words that all such rows share; `detail`: the
    error of this one, and how its `text` begins.
    """

    def __init__(self, reason: str, row: str, error: str = "") -> None:
        super().__init__(reason)
        self.reason, text = reason, row.strip()
        self.text = text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
        self.detail = f"{error}{'; ' if error else ''}the row begins {self.text!r}"


def read_rows(file: Path) -> Iterator[tuple[str, Any]]:
    """(location, row) for every row of a file, counted from 1. An unreadable row yields an
    `UnreadableRow`; an unreadable file raises one.
    """
    kind = _kind(file)
    if kind in TEXTS and _is_utf_16(file):
        raise DataError(f"{file} is in UTF-16; expected UTF-8: save it as UTF-8")
    if kind == ".json" or (kind == ".jsonl" and _begins(file, b"[")):
        try:
            rows: Iterable[Any] = _json(file)
        except DataError:
            if kind == ".json" and not _is_json_lines(file):
                raise
            kind = ".jsonl"
        else:
            yield from ((f"{file}, row {number}", _whole(row)) for number, row in enumerate(rows, start=1))
            return
    if kind == ".jsonl":
        yield from _json_lines(file)
        return
    rows = {".parquet": parquet_rows, ".arrow": _arrow, ".csv": _table, ".tsv": _table}[kind](file)
    yield from ((f"{file}, row {number}", row) for number, row in enumerate(rows, start=1))


def _kind(file: Path) -> str:
    """How to read a file: its suffix without `.gz`, in lower case; `.jsonl` where that names no format."""
    name = file.name.lower()
    suffix = Path(name.removesuffix(".gz")).suffix
    return suffix if suffix in SUFFIXES and suffix != ".ndjson" else ".jsonl"


def _json_lines(file: Path) -> Iterator[tuple[str, Any]]:
    for number, line in enumerate(_lines(file), start=1):
        if line.strip():
            try:
                row = _decode(line)
                row = _whole(row) if b"\\u" in line else row
            except ValueError as error:
                at = f"{error.msg} at column {error.colno}" if isinstance(error, JSONDecodeError) else error
                row = UnreadableRow("not valid JSON", line.decode(errors="replace"), str(at))
            yield f"{file}, line {number}", row


def _begins(file: Path, mark: bytes) -> bool:
    """Whether the first line of a file that is not blank begins with `mark`."""
    first = next((line for line in _lines(file) if line.strip()), b"")
    return first.removeprefix(codecs.BOM_UTF8).lstrip().startswith(mark)


def _is_utf_16(file: Path) -> bool:
    """Whether a text begins with the byte order mark of UTF-16, or with an ASCII character in UTF-16."""
    first = next(_lines(file), b"")[:2]
    return first.startswith(UTF_16) or b"\0" in first


def _is_json_lines(file: Path) -> bool:
    """Whether the first line is a JSON object of its own, as in many `.json` files of the Hub."""
    try:
        return isinstance(_decode(next(iter(_lines(file)), b"")), dict)
    except ValueError:
        return False


def _open(file: Path) -> IO[bytes]:
    opened = gzip.open(file, "rb") if file.suffix.lower() == ".gz" else file.open("rb")  # noqa: SIM115
    return cast(IO[bytes], opened)


def _lines(file: Path) -> Iterator[bytes]:
    try:
        with _open(file) as lines:
            yield from lines
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{file} is an incomplete or invalid gzip file: {error}") from error


def _decode(raw: bytes) -> Any:
    """Decode JSON. `ValueError` for invalid JSON or UTF-8."""
    try:
        return json.loads(raw)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _whole(row: Any) -> Any:
    """The row, or an `UnreadableRow` if a text has half a character, which UTF-8 cannot hold."""
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = error.object[error.start]
        why = f"a text has half a character, {half!r} (a surrogate without its other half)"
        return UnreadableRow(why, json.dumps(row))
    return row


def _json(file: Path) -> list[Any]:
    """Rows of a JSON file: a list, an object with one list of rows (`{"data": [...], "errors": []}`), or
    an object of rows keyed by id.
    """
    try:
        found = _decode(b"".join(_lines(file)))
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
        if len(filled := [rows for rows in lists if rows] or lists[:1]) == 1:
            return filled[0]
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


def _table(file: Path) -> Iterator[Any]:
    """Rows of a CSV or TSV file with a header; an `UnreadableRow` for one with more or fewer cells, which may
    be in the wrong columns. Empty cells are None, the JSON of messages is decoded, and all other cells are
    texts. A CSV file whose header has no comma may be separated by semicolons or tabs.
    """
    csv.field_size_limit(sys.maxsize)
    kind, line = _kind(file), 1
    try:
        with io.TextIOWrapper(_open(file), encoding="utf-8-sig", newline="") as lines:
            header = lines.readline()
            between = "\t" if kind == ".tsv" else next((mark for mark in ",;\t" if mark in header), ",")
            names = [name.strip() for name in next(csv.reader([header], delimiter=between), [])]
            if twice := sorted({name for name in names if names.count(name) > 1}):
                raise DataError(f"{file}: the header has the column {twice[0]!r} twice; rename one of them")
            rows = csv.reader(lines, delimiter=between, strict=True)
            for cells in filter(None, rows):
                line = 1 + rows.line_num
                yield (
                    {name: from_json(value) or None for name, value in zip(names, cells, strict=True)}
                    if len(cells) == len(names)
                    else UnreadableRow(
                        f"the row has {len(cells)} cells and the header {len(names)}: put texts with "
                        f"{between!r} in quotation marks",
                        between.join(cells),
                    )
                )
    except (csv.Error, UnicodeDecodeError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(
            f"{file} is not a readable {kind[1:].upper()} file in UTF-8: {error} (after line {line})"
        ) from error
