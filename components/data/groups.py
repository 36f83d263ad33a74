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
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from ratchet.components.data.parquet import read_parquet, save_table
from ratchet.components.errors import DataError, SourceError
from ratchet.components.types import Group, Message, Prompt, Span, Stop, Trajectory

ROLES = ("system", "user", "assistant", "tool")
STOPS = get_args(Stop)
VERSION = "1"
_MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
SCHEMA = pa.schema(
    [
        ("group", pa.int32()),
        ("prompt_id", pa.string()),
        ("index", pa.int32()),
        ("prompt", _MESSAGES),
        ("completion", _MESSAGES),
        ("answer", pa.string()),
        ("source", pa.string()),
        ("actor", pa.string()),
        ("weights", pa.string()),
        ("stop", pa.string()),
        ("meta", pa.string()),
        ("tokens", pa.list_(pa.int32())),
        ("mask", pa.list_(pa.bool_())),
        ("logprobs", pa.list_(pa.float32())),
    ]
)


def write_groups(path: Path, groups: Iterable[Group]) -> Path:
    """Write groups to one Parquet file, atomically. `DataError` for values that Parquet cannot store."""
    path, groups = Path(path), list(groups)
    names = sorted({name for group in groups for name in group.columns})
    if taken := set(names) & set(SCHEMA.names):
        raise DataError(
            f"{path}: column {min(taken)!r} has a reserved name (fixed column of the layout); rename it"
        )
    rows: dict[str, list[Any]] = {name: [] for name in (*SCHEMA.names, *names)}
    for number, group in enumerate(groups):
        try:
            _append(rows, number, group, names)
        except (TypeError, KeyError, ValueError) as error:
            raise DataError(
                f"{path}: group {number} ({group.prompt.id!r}) cannot be written: {error}"
            ) from error
    fields, arrays = list(SCHEMA), []
    for field in SCHEMA:
        try:
            arrays.append(pa.array(rows[field.name], type=field.type))
        except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
            raise DataError(
                f"{path}: column {field.name!r} holds a value that is not {field.type}: {error}"
            ) from error
    for name in names:
        array = _column(rows[name], f"{path}: column {name!r}")
        fields.append(pa.field(name, array.type))
        arrays.append(array)
    schema = pa.schema(fields, metadata={"layout": "groups", "version": VERSION})
    save_table(pa.Table.from_arrays(arrays, schema=schema), path)
    return path


def _append(rows: dict[str, list[Any]], number: int, group: Group, names: Sequence[str]) -> None:
    absent = [name for name in names if name not in group.columns]
    for name, values in group.columns.items():
        if len(values) != len(group.trajectories):
            raise ValueError(
                f"column {name!r} has {len(values)} values for {len(group.trajectories)} trajectories"
            )
    prompt = [_message(m) for m in group.prompt.messages]
    for index, path in enumerate(group.trajectories or (None,)):
        rest: dict[str, Any] = {"prompt": dict(group.prompt.meta)} if group.prompt.meta else {}
        if not index and group.prompt.inputs:
            rest["prompt_inputs"] = dict(group.prompt.inputs)
        if absent:
            rest["absent"] = absent
        if path is not None:
            rest |= _rest(path)
        tokens = _plain(path.inputs.get("tokens")) if path else None
        mask = _plain(path.mask) if path else None
        logprobs = _plain(path.logprobs) if path else None
        row = {
            "group": number,
            "prompt_id": group.prompt.id,
            "index": index if path else -1,
            "prompt": prompt,
            "completion": [_message(m) for m in path.messages] if path else None,
            "answer": group.prompt.answer,
            "source": group.prompt.source,
            "actor": path.actor if path else None,
            "weights": path.weights if path else None,
            "stop": path.stop if path else None,
            "meta": json.dumps(rest, ensure_ascii=False, sort_keys=True) if rest else "{}",
            "tokens": tokens,
            "mask": mask or None,
            "logprobs": logprobs,
        }
        for name in names:
            row[name] = _plain(group.columns[name][index]) if path and name in group.columns else None
        for name, value in row.items():
            rows[name].append(value)


def _message(message: Mapping[str, Any]) -> dict[str, str]:
    if (
        set(message) != {"role", "content"}
        or message["role"] not in ROLES
        or not isinstance(message["content"], str)
    ):
        raise ValueError(
            f"a message needs exactly a role (one of {ROLES}) and a text content, got {message!r}"
        )
    return {"role": message["role"], "content": message["content"]}


def _rest(path: Trajectory) -> dict[str, Any]:
    rest: dict[str, Any] = {}
    if path.meta:
        rest["trajectory"] = dict(path.meta)
    if path.spans:
        rest["spans"] = [_span(span) for span in path.spans]
    if path.parent is not None:
        rest["parent"] = list(path.parent)
    if others := {name: _plain(values) for name, values in path.inputs.items() if name != "tokens"}:
        rest["inputs"] = others
    return rest


def _span(span: Span) -> list[Any]:
    """Start, stop and reward; the rest only if it is not the default."""
    more = {
        field.name: dict(value) if field.name == "numbers" else value
        for field in dataclasses.fields(Span)[3:]
        if (value := getattr(span, field.name)) != getattr(Span(0, 0), field.name)
    }
    return [span.start, span.stop, span.reward, *([more] if more else [])]


def _plain(value: Any) -> Any:
    """Convert tensors, arrays, numpy scalars and tuples to Python lists and numbers."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    return [_plain(one) for one in value] if isinstance(value, (list, tuple)) else value


def _column(values: list[Any], what: str) -> pa.Array:
    try:
        array = pa.array(values, from_pandas=False)
    except (pa.ArrowException, OverflowError, TypeError, ValueError) as error:
        raise DataError(f"{what} mixes types or has values that Parquet cannot store: {error}") from error
    if "struct" in str(array.type):
        raise DataError(
            f"{what} contains dictionaries; columns may contain numbers, strings or lists, meta the rest"
        )
    if pa.types.is_list(array.type) and array.type.value_type == pa.float64():
        # per-step values usually come from float32 tensors: half the bytes
        small = array.cast(pa.list_(pa.float32()))
        if small.cast(array.type).equals(array):  # only if lossless
            return small
    return array


def read_groups(path: Path) -> list[Group]:
    """Read the groups of a file. `SourceError` if it is missing, `DataError` with file and row if it is
    damaged.
    """
    path = Path(path)
    if not path.is_file():
        raise SourceError(f"groups file not found: {path}")
    rows = read_parquet(path)
    if not rows and SCHEMA.names[0] not in pq.read_schema(path).names:
        raise DataError(f"{path} is not in the groups layout: it has no column 'group'")
    groups: list[Group] = []
    previous, gathered = None, []
    for number, row in enumerate(rows):
        try:
            if set(SCHEMA.names) - set(row):
                raise ValueError(f"the columns {sorted(set(SCHEMA.names) - set(row))} are missing")
            if row["group"] != previous and gathered:
                groups.append(_group(gathered))
                gathered = []
            previous = row["group"]
            gathered.append(_checked(row, len(gathered)))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise DataError(f"{path}, row {number}: {error}") from error
    return [*groups, _group(gathered)] if gathered else groups


def _checked(row: dict[str, Any], place: int) -> dict[str, Any]:
    """Validate a row and decode its `meta`."""
    for name in ("group", "prompt_id", "index", "prompt", "source", "meta"):
        if row[name] is None:
            raise ValueError(f"{name!r} is null")
    if row["index"] != (-1 if row["completion"] is None else place):
        raise ValueError(f"index is {row['index']}, expected {-1 if row['completion'] is None else place}")
    for message in (*row["prompt"], *(row["completion"] or ())):
        _message(message)
    if row["index"] >= 0:
        if row["stop"] not in STOPS:
            raise ValueError(f"stop is {row['stop']!r}, expected one of {STOPS}")
        lengths = {name: len(row[name]) for name in ("tokens", "mask", "logprobs") if row[name] is not None}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"tokens, mask and logprobs differ in length: {lengths}")
    meta = json.loads(row["meta"])
    if not isinstance(meta, dict):
        raise ValueError(f"meta is {row['meta'][:80]!r}, expected a JSON object")
    return {**row, "meta": meta}


def _group(rows: list[dict[str, Any]]) -> Group:
    first = rows[0]
    for row in rows[1:]:
        if row["prompt_id"] != first["prompt_id"] or row["prompt"] != first["prompt"]:
            raise ValueError(f"rows of group {first['group']} have different prompts")
    prompt = Prompt(
        first["prompt_id"],
        _turns(first["prompt"]),
        first["answer"],
        first["source"],
        first["meta"].get("prompt", {}),
        first["meta"].get("prompt_inputs", {}),
    )
    absent = set(first["meta"].get("absent", ()))
    full = [row for row in rows if row["index"] >= 0]
    columns = {
        name: [row[name] for row in full] for name in first if name not in SCHEMA.names and name not in absent
    }
    return Group(prompt, tuple(_trajectory(row) for row in full), columns)


def _turns(messages: Sequence[Mapping[str, str]]) -> tuple[Message, ...]:
    return tuple({"role": m["role"], "content": m["content"]} for m in messages)  # type: ignore[misc]


def _trajectory(row: dict[str, Any]) -> Trajectory:
    meta = row["meta"]
    inputs = dict(meta.get("inputs", {}))
    if row["tokens"] is not None:
        inputs["tokens"] = row["tokens"]
    return Trajectory(
        _turns(row["completion"]),
        inputs,
        row["mask"] if row["mask"] is not None else (),
        row["logprobs"],
        row["actor"] or "",
        row["weights"] or "",
        tuple(Span(*span[:3], **(span[3] if span[3:] else {})) for span in meta.get("spans", ())),
        tuple(meta["parent"]) if "parent" in meta else None,
        row["stop"],
        meta.get("trajectory", {}),
    )


def by_prompt(groups: Sequence[Group]) -> list[Group]:
    """All groups of a prompt as one (rows in order, of pairs chosen first; columns that all of them have), so
    that all comparisons of a prompt are in one batch (InstructGPT, section 3.5) and the shared prefix is
    processed once.
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
