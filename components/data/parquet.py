"""Parquet files: rows one row group at a time, with the place of damage; written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ratchet.components.errors import DataError

ROW_GROUP = 4096


def save_table(table: pa.Table, path: Path) -> None:
    """Write Parquet with page checksums to a temporary file, fsync, then rename."""
    save_tables([table], table.schema, path)


def save_tables(tables: Iterable[pa.Table], schema: pa.Schema, path: Path) -> None:
    """As `save_table`, of tables that follow each other. Each starts a row group, so all but the last should
    have a multiple of `ROW_GROUP` rows.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        with pq.ParquetWriter(partial, schema, compression="zstd", write_page_checksum=True) as writer:
            for table in tables:
                writer.write_table(table, row_group_size=ROW_GROUP)
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read_parquet(path: Path) -> list[dict[str, Any]]:
    """All rows of a Parquet file as dictionaries. `DataError` names damaged row ranges."""
    return list(parquet_rows(path))


def parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    """As `read_parquet`, lazily by row group."""
    for rows in _row_groups(path, pa.Table.to_pylist):
        yield from rows


def parquet_tables(path: Path) -> Iterator[pa.Table]:
    """The row groups of a Parquet file as Arrow tables. `DataError` as for `read_parquet`."""
    return _row_groups(path, lambda table: table)


def _row_groups(path: Path, convert: Callable[[pa.Table], Any]) -> Iterator[Any]:
    start = 0
    try:
        file = pq.ParquetFile(path, page_checksum_verification=True)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} is not a readable Parquet file: {_first_line(error)}") from error
    for number in range(file.num_row_groups):
        stop = start + file.metadata.row_group(number).num_rows
        try:
            converted = convert(file.read_row_group(number))
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise DataError(
                f"{path}, rows {start} to {stop - 1} are damaged: {_first_line(error)}; download or "
                "create the file again"
            ) from error
        yield converted
        start = stop


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
