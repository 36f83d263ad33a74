"""Rows of a groups file and the groups that they hold: `components/data/groups.py` describes the columns."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ratchet.components.data.step_values import StepValues
from ratchet.components.types import Group, Message, Prompt, Span, Stop, Trajectory

ROLES = ("system", "user", "assistant", "tool")
STOPS = get_args(Stop)
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
STEPS = ("tokens", "mask", "logprobs")


def rows_of_group(number: int, group: Group) -> list[dict[str, Any]]:
    """One row per trajectory, or one with index -1; only the columns that the group has. `ValueError` for
    what the layout cannot hold.
    """
    for name, values in group.columns.items():
        if len(values) != len(group.trajectories):
            raise ValueError(
                f"column {name!r} has {len(values)} values for {len(group.trajectories)} trajectories"
            )
    prompt, rows = [_message(m) for m in group.prompt.messages], []
    for index, path in enumerate(group.trajectories or (None,)):
        rest: dict[str, Any] = {"prompt": dict(group.prompt.meta)} if group.prompt.meta else {}
        if not index and group.prompt.inputs:
            rest["prompt_inputs"] = dict(group.prompt.inputs)
        if path is not None:
            rest |= _rest(path)
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
            "tokens": _steps(path.inputs.get("tokens"), "int32") if path else None,
            "mask": _steps(path.mask, "bool") if path and len(path.mask) else None,
            "logprobs": _steps(path.logprobs, "float32") if path else None,
        }
        rows.append(
            row | {name: _plain(values[index]) for name, values in group.columns.items() if path is not None}
        )
    return rows


def with_absent(meta: str, names: Sequence[str]) -> str:
    """The JSON `meta` of a row whose group lacks the columns `names` of other groups."""
    absent = f'"absent": {json.dumps(list(names), ensure_ascii=False)}'  # the first of the sorted keys
    return f"{{{absent}}}" if meta == "{}" else f"{{{absent}, {meta[1:]}"


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


def _steps(values: Any, dtype: str) -> Any:
    """An array that Arrow takes as it is, else Python numbers."""
    if isinstance(values, StepValues):
        values = np.asarray(values)
    exact = isinstance(values, np.ndarray) and values.ndim == 1 and values.dtype == dtype
    return values if exact else _plain(values)


def check_rows(table: pa.Table) -> list[dict[str, Any]]:
    """The rows of a part of a file without the values of tokens, mask, log-probs and group columns; those of
    the first three are lengths. `ValueError` if columns are missing.
    """
    if missing := set(SCHEMA.names) - set(table.column_names):
        raise ValueError(f"the columns {sorted(missing)} are missing")
    rows = table.select([name for name in SCHEMA.names if name not in STEPS]).to_pylist()
    lengths = [pc.call_function("list_value_length", [table[name]]).to_pylist() for name in STEPS]
    return [row | dict(zip(STEPS, sizes, strict=True)) for row, *sizes in zip(rows, *lengths, strict=True)]


def check_row(row: Mapping[str, Any], place: int, first: Mapping[str, Any]) -> None:
    """Validate row number `place` of a group, as of `check_rows`; `first` is the group's first. `ValueError`
    says what is wrong.
    """
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
        lengths = {name: row[name] for name in STEPS if row[name] is not None}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"tokens, mask and logprobs differ in length: {lengths}")
    if not isinstance(json.loads(row["meta"]), dict):
        raise ValueError(f"meta is {row['meta'][:80]!r}, expected a JSON object")
    if row["prompt_id"] != first["prompt_id"] or row["prompt"] != first["prompt"]:
        raise ValueError(f"rows of group {first['group']} have different prompts")


def compact_rows(table: pa.Table) -> list[dict[str, Any]]:
    """The rows of a table, with lists of numbers as `StepValues` of its memory."""
    lists = [f.name for f in table.schema if pa.types.is_list(f.type) and _numeric(f.type.value_type)]
    rows = table.drop_columns(lists).to_pylist() if lists else table.to_pylist()
    for name in lists:
        for row, scalar in zip(rows, table[name], strict=True):
            row[name] = None if scalar.values is None else _values(scalar.values)
    return [{name: row[name] for name in table.column_names} for row in rows]


def _numeric(kind: pa.DataType) -> bool:
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)


def _values(values: pa.Array) -> StepValues | list[Any]:
    return values.to_pylist() if values.null_count else StepValues(values.to_numpy(zero_copy_only=False))


def group_of_rows(rows: Sequence[dict[str, Any]]) -> Group:
    """The group of checked rows."""
    rows = [row | {"meta": json.loads(row["meta"])} for row in rows]
    first = rows[0]
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
