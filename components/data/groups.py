"""Groups on disk: Parquet with one trajectory per row, readable with pandas.

    group       int32         number shared by the adjacent rows of a group
    prompt_id   string
    index       int32         index in the group; -1 for a prompt without trajectories
    prompt      list<struct<role, content>>      completion   the same: messages after the prompt
    answer, source, actor, weights, stop         strings
    meta        string        JSON of the rest: prompt and trajectory meta, spans, parent, inputs other than
                tokens; in a group's first row also the inputs of its prompt
    tokens      list<int32>   mask   list<bool>   logprobs   list<float32>     null if absent
    <name>      one Parquet column per group column: a scalar (float64, int64, bool, string) or a list

Reading restores what was written, with sequences as lists and logprobs rounded to float32. A column that only
some groups have stays absent in the others. Equal groups give equal bytes.

Writing holds a few groups in memory at a time, and their rows in Arrow, in a temporary file beyond
`spool.IN_MEMORY` bytes. Reading builds all groups of a file up to that size at once, those of a larger one
one by one, when they are used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ratchet.components.data.group_rows import (
    SCHEMA,
    check_row,
    check_rows,
    group_of_rows,
    rows_of_group,
    with_absent,
)
from ratchet.components.data.lazy_groups import Groups
from ratchet.components.data.parquet import ROW_GROUP, parquet_tables, save_tables
from ratchet.components.data.spool import Spool
from ratchet.components.errors import DataError, SourceError
from ratchet.components.types import Group

VERSION = "1"
ROWS = 256
"""Rows, or a few more, that are Python objects at a time, before they are an Arrow batch."""


def write_groups(path: Path, groups: Iterable[Group]) -> Path:
    """Write groups to one Parquet file, atomically, after an iterator has been consumed to its end: the
    columns' types depend on all groups. `DataError` for values that Parquet cannot store.
    """
    path, spool = Path(path), Spool()
    columns_of_rows: list[frozenset[str]] = []  # of each row's group
    known: dict[frozenset[str], frozenset[str]] = {}  # equal sets as one object
    rows: list[dict[str, Any]] = []
    for number, group in enumerate(groups):
        names = frozenset(group.columns)
        if reserved := names & set(SCHEMA.names):
            raise DataError(
                f"{path}: column {min(reserved)!r} has a reserved name (fixed column of the layout); "
                "rename it"
            )
        try:
            group_rows = rows_of_group(number, group)
        except (TypeError, KeyError, ValueError) as error:
            raise DataError(
                f"{path}: group {number} ({group.prompt.id!r}) cannot be written: {error}"
            ) from error
        rows += group_rows
        columns_of_rows += [known.setdefault(names, names)] * len(group_rows)
        if len(rows) >= ROWS:
            spool.append(_batch(path, rows))
            rows = []
    if rows or not columns_of_rows:
        spool.append(_batch(path, rows))
    batches, names = spool.batches(), sorted(frozenset().union(*known))
    schema = _schema(path, batches, names)
    save_tables(_tables(path, batches, schema, columns_of_rows), schema, path)
    return path


def _batch(path: Path, rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    arrays = {}
    for field in SCHEMA:
        try:
            arrays[field.name] = pa.array([row[field.name] for row in rows], type=field.type)
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            raise DataError(
                f"{path}: column {field.name!r} holds a value that is not {field.type}: {error}"
            ) from error
    for name in sorted({name for row in rows for name in row} - set(arrays)):
        arrays[name] = _column([row.get(name) for row in rows], f"{path}: column {name!r}")
    return pa.RecordBatch.from_pydict(arrays)


def _column(values: list[Any], what: str) -> pa.Array:
    try:
        array = pa.array(values, from_pandas=False)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise DataError(f"{what} mixes types or has values that Parquet cannot store: {error}") from error
    if "struct" in str(array.type):
        raise DataError(
            f"{what} contains dictionaries; a column may contain numbers, strings or lists of them. Put "
            "anything else into the meta of a prompt or trajectory"
        )
    return array


def _schema(path: Path, batches: Sequence[pa.RecordBatch], names: Sequence[str]) -> pa.Schema:
    """The columns' types over all batches: whole numbers with fractions are float64."""
    fields = list(SCHEMA)
    for name in names:
        arrays = [batch.column(name) for batch in batches if name in batch.schema.names]
        kinds = [pa.schema([(name, kind)]) for kind in dict.fromkeys(array.type for array in arrays)]
        try:
            kind = pa.unify_schemas(kinds, promote_options="permissive").field(0).type if kinds else pa.null()
            if pa.types.is_list(kind) and kind.value_type == pa.float64() and _fits_float32(arrays, kind):
                kind = pa.list_(pa.float32())
        except (pa.ArrowException, TypeError, ValueError) as error:
            raise DataError(
                f"{path}: column {name!r} mixes types or has values that Parquet cannot store: {error}"
            ) from error
        fields.append(pa.field(name, kind))
    return pa.schema(fields, metadata={"layout": "groups", "version": VERSION})


def _fits_float32(arrays: Sequence[pa.Array], kind: pa.DataType) -> bool:
    """Whether all values are equal in float32: per-step values usually come from such tensors, in half the
    bytes. NaN equals nothing, so a column with one stays float64.
    """
    wide = (array.cast(kind) for array in arrays)
    return all(array.cast(pa.list_(pa.float32())).cast(kind).equals(array) for array in wide)


def _tables(
    path: Path,
    batches: Sequence[pa.RecordBatch],
    schema: pa.Schema,
    columns_of_rows: Sequence[frozenset[str]],
) -> Iterator[pa.Table]:
    """The rows with all columns, in tables of `ROW_GROUP` rows."""
    waiting, first = schema.empty_table(), 0
    for batch in batches:
        last = first + batch.num_rows
        rows = _whole(path, batch, schema, columns_of_rows[first:last])
        waiting, first = pa.concat_tables([waiting, rows]), last
        while waiting.num_rows >= ROW_GROUP:
            yield waiting.slice(0, ROW_GROUP).combine_chunks()
            waiting = waiting.slice(ROW_GROUP)
    if waiting.num_rows or not columns_of_rows:
        yield waiting.combine_chunks()


def _whole(
    path: Path, batch: pa.RecordBatch, schema: pa.Schema, columns_of_rows: Sequence[frozenset[str]]
) -> pa.Table:
    """The rows of a batch with all columns of `schema`; `meta` names those that a row's group lacks."""
    names = schema.names[len(SCHEMA) :]
    arrays = []
    for field in schema:
        if field.name == "meta" and any(len(has) < len(names) for has in columns_of_rows):
            lacks = {has: [name for name in names if name not in has] for has in set(columns_of_rows)}
            pairs = zip(batch.column("meta").to_pylist(), columns_of_rows, strict=True)
            arrays.append(pa.array([with_absent(m, lacks[has]) if lacks[has] else m for m, has in pairs]))
        elif field.name not in batch.schema.names:
            arrays.append(pa.nulls(batch.num_rows, field.type))
        else:
            try:
                arrays.append(batch.column(field.name).cast(field.type))
            except (pa.ArrowException, ValueError) as error:
                raise DataError(
                    f"{path}: column {field.name!r} has a value that is not {field.type}: {error}"
                ) from error
    return pa.Table.from_arrays(arrays, schema=schema)


def read_groups(path: Path) -> Sequence[Group]:
    """Read the groups of a file: a list or, if its columns other than `meta` exceed `spool.IN_MEMORY` bytes,
    `Groups`. All rows are checked first: `SourceError` if the file is missing, `DataError` with file and row
    if it is damaged.
    """
    path, spool = Path(path), Spool()
    if not path.is_file():
        raise SourceError(f"groups file not found: {path}")
    starts: list[int] = []
    first: dict[str, Any] = {}
    number = size = 0
    for table in parquet_tables(path):
        try:
            for row in check_rows(table):
                if not first or row["group"] != first["group"]:
                    starts.append(number)
                    first = row
                check_row(row, number - starts[-1], first)
                number += 1
        except (ValueError, KeyError, TypeError, AttributeError, pa.ArrowException) as error:
            raise DataError(f"{path}, row {number}: {error}") from error
        size += table.nbytes - table["meta"].nbytes
        for batch in table.to_batches():
            spool.append(batch)
    if not starts:
        if SCHEMA.names[0] not in pq.read_schema(path).names:
            raise DataError(f"{path} is not in the groups layout: it has no column 'group'")
        return []
    whole = pa.Table.from_batches(spool.batches())
    places = list(zip(starts, [*starts[1:], number], strict=True))
    if size > spool.most:
        return Groups(whole, places)
    rows = whole.to_pylist()
    return [group_of_rows(rows[start:stop]) for start, stop in places]


def by_prompt(groups: Sequence[Group]) -> list[Group]:
    """All groups of a prompt as one, so that all comparisons of a prompt are in one batch (InstructGPT,
    section 3.5) and the shared prefix is processed once. Trajectories keep their order, those of pairs are
    chosen, rejected, chosen, rejected; columns are those that all groups of the prompt have.
    """
    gathered: dict[str, list[Group]] = {}
    for group in groups:
        gathered.setdefault(group.prompt.id, []).append(group)
    return [
        Group(
            members[0].prompt,
            tuple(t for group in members for t in group.trajectories),
            {
                name: [value for group in members for value in group.columns[name]]
                for name in sorted(set.intersection(*(set(group.columns) for group in members)))
            },
        )
        for members in gathered.values()
    ]
