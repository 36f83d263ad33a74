"""Parsing of rows to records with the pieces in `components/pieces/parsers`, one per published layout.

A parser takes a row and returns its records (several if the row holds several pairs) or raises `ValueError`.
Its `reads` are the columns that the layout requires, its `writes` what it adds besides the prompt. `auto`
picks, for each row, the parser with the most `reads` among those whose columns are all present.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from ratchet.components.data.choose_parser import chooser
from ratchet.components.data.files import UnreadableRow, read_rows
from ratchet.components.data.groups import read_groups
from ratchet.components.data.images import without_images
from ratchet.components.data.messages import answer_of, decoded, label_of, score_of
from ratchet.components.data.published import published
from ratchet.components.data.records import Conversation, FilterResult, Rejected
from ratchet.components.errors import DataError
from ratchet.components.recipes.splits import SPLIT_COLUMN

RENAMED = "renamed: duplicate id"
GROUPS = {"group", "prompt_id", "completion"}
STRUCTURED = ("messages", "conversations", "history", "completions", "ratings", "images", "test_list")
"""Columns that are lists or objects, also as their JSON, which CSV and some Parquet files have."""
TESTS = (
    "test",
    "entry_point",
    "canonical_solution",
    "test_list",
)  # columns of HumanEval and MBPP that `rewards.unit_tests` reads


def parse(
    path: Path,
    parser: str | Mapping[str, Any] = "auto",
    columns: Mapping[str, str] | None = None,
    *,
    config: str | None = None,
    splits: Mapping[Any, str | Sequence[str]] | None = None,
    most: int | None = None,
    alone: bool = True,
) -> FilterResult:
    """Records of a file or folder; unreadable rows are dropped with a reason. `columns` maps a layout's
    column names to the file's; its key `split` names the column with each row's published split (a "split" in
    the sense of Hugging Face datasets). `config`,
    `splits` and `alone` as in `published`; `most` limits the rows per file.
    `DataError` if no row is usable, `RecipeError` for an unknown parser.
    """
    choose = chooser(parser)
    kept: list[Conversation] = []
    dropped: list[Rejected] = []
    first: Any = None
    layouts: Counter[str] = Counter()
    for split, file in published(path, config, splits, alone=alone):
        for i, (where, row) in enumerate(islice(read_rows(file), most)):
            key = f"{file.name.partition('.')[0]}-{i}"
            first = row if first is None else first
            if isinstance(row, Mapping) and set(row) >= GROUPS:
                kept.extend(_from_groups(file, split))
                break
            try:
                if isinstance(row, UnreadableRow):
                    dropped.append(Rejected(key, row.reason, row.text, detail=f"{where}: {row.detail}"))
                    continue
                if not isinstance(row, Mapping):
                    raise ValueError(
                        f"the row is a {type(row).__name__}, expected an object with named columns"
                    )
                row, images = without_images(renamed(row, columns or {}))
                name, layout = choose(row)
                named = key if row.get("id") is None else str(row["id"])
                own = _text(row.get(SPLIT_COLUMN)) if SPLIT_COLUMN in (columns or {}) else split
                kept.extend(_finished(layout(row), row, named, own, images))
                layouts.update([f"read as `{name}`"] if name else [])
            except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
                reason, value = _reason(error)
                detail = f"{value} ({where})" if value else where
                dropped.append(Rejected(key, reason, _printable(row), detail=detail))
    if not kept:
        why = (
            f"all {len(dropped)} rows are invalid, the first because: {dropped[0].explained}"
            f"{'' if isinstance(first, UnreadableRow) else f'; the row: {_printed(first)}'}"
            if dropped
            else "it is empty"
        )
        if dropped and parser != "auto":
            given = parser if isinstance(parser, str) else parser["name"]
            why += f"; `data.parser` is {given!r}, and with `auto` the columns decide how a row is read"
        raise DataError(f"{path} holds no usable record: {why}")
    return unique(FilterResult(kept, dropped, layouts))


def _text(value: Any) -> str:
    """Text of a cell, such as 0 or False; an empty one has none."""
    return "" if value is None else str(value)


def unique(sifted: FilterResult) -> FilterResult:
    """Number records with the same id: a, a~2, a~3."""
    own, seen, numbers, kept = {r.id for r in sifted.kept}, set[str](), Counter[str](), []
    for record in sifted.kept:
        name = record.id
        while name in seen:
            numbers[record.id] += 1
            name = f"{record.id}~{numbers[record.id] + 1}"
            name = record.id if name in own else name  # the id of another record: the next number
        seen.add(name)
        kept.append(record if name == record.id else replace(record, id=name))
    return FilterResult(
        kept,
        sifted.dropped,
        {**sifted.changed, RENAMED: sifted.changed.get(RENAMED, 0) + len(kept) - len(own)},
    )


def renamed(row: Mapping[str, Any], columns: Mapping[str, str]) -> Mapping[str, Any]:
    """The row with the layout's column names and decoded `STRUCTURED` columns; `a.b` addresses `b` in the
    object `a`, or in its JSON.
    """
    found: dict[str, Any] = {}
    for name, theirs in columns.items():
        value: Any = row
        for part in [theirs] if theirs in row else theirs.split("."):
            value = decoded(value)
            if not isinstance(value, Mapping) or part not in value:
                raise ValueError(
                    f"data.columns.{name}: the row has no column {theirs!r}, it has "
                    f"{', '.join(map(str, row))}"
                )
            value = value[part]
        found[name] = value
    kept = {name: value for name, value in row.items() if name not in columns.values()}
    return {
        name: decoded(value) if name in STRUCTURED else value for name, value in {**kept, **found}.items()
    }


def _finished(
    records: Sequence[Conversation],
    row: Mapping[str, Any],
    key: str,
    split: str,
    images: Mapping[str, str],
) -> list[Conversation]:
    """Add id and optional fields of any layout to the records: topic, ratings, answer, source, meta,
    images.
    """
    meta = {
        **{name: row[name] for name in TESTS if row.get(name) is not None},
        **_object("meta", row.get("meta")),
    }
    rated = {
        name: score_of(f"ratings.{name}", value)
        for name, value in _object("ratings", row.get("ratings")).items()
    }
    ratings = {name: value for name, value in rated.items() if value is not None}
    topic = row.get("topic")
    if isinstance(topic, (list, Mapping)):
        raise ValueError(f"topic: expected a text, got {str(topic)[:80]}")
    mean = sum(ratings.values()) / len(ratings) if ratings else None
    rating = mean if row.get("rating") is None else score_of("rating", row["rating"])
    label, answer = label_of(row.get("label")), answer_of(row.get("answer"))
    return [
        replace(
            record,
            id=key if len(records) == 1 else f"{key}-{i}",
            topic=record.topic or (None if topic is None else str(topic)) or None,
            rating=rating if record.rating is None else record.rating,
            ratings=record.ratings or ratings,
            label=label if record.label is None else record.label,
            answer=answer if record.answer is None else record.answer,
            source=record.source or str(row.get("source") or ""),
            meta={**meta, **record.meta},
            published=split,
            inputs={"images": images} if images else {},
        )
        for i, record in enumerate(records)
    ]


def _object(name: str, value: Any) -> Mapping[str, Any]:
    """An object, its JSON or its list of pairs (Arrow's maps); empty for None."""
    found: Any = value or {}
    with contextlib.suppress(ValueError, TypeError):
        found = json.loads(found) if isinstance(found, str) else dict(found)
    if not isinstance(found, Mapping):
        raise ValueError(f"{name}: expected an object or its JSON, got {str(value)[:80]}")
    return found


def _from_groups(file: Path, split: str) -> list[Conversation]:
    """Records from a file in the groups layout (see `groups.py`)."""
    found = []
    for group in read_groups(file):
        prompt = group.prompt
        conversations = [prompt.messages + path.messages for path in group.trajectories]
        if len(conversations) > 2:
            raise DataError(
                f"{file}: group {prompt.id!r} has {len(conversations)} trajectories; curation takes up to two"
            )
        found.append(
            Conversation(
                prompt.id,
                conversations[0] if conversations else prompt.messages,
                prompt.meta.get("topic"),
                opening=len(prompt.messages),
                rejected=conversations[1] if len(conversations) > 1 else (),
                answer=prompt.answer,
                source=prompt.source,
                meta=prompt.meta,
                label=bool(group.columns["label"][0]) if "label" in group.columns else None,
                published=split,
                inputs=prompt.inputs,
            )
        )
    return found


def _reason(error: Exception) -> tuple[str, str]:
    """Why a row is unreadable, and which value of it is; for unexpected exceptions their type and text."""
    if isinstance(error, KeyError):
        return f"the column {error} is missing", ""
    if type(error) not in (ValueError, DataError):
        return "broken structure", f"{type(error).__name__} {error}"
    reason, got, value = str(error).partition(", got ")
    return reason, got.removeprefix(", ") + value


def _printable(row: Any) -> Any:
    return row.text if isinstance(row, UnreadableRow) else json.loads(json.dumps(row, default=str))


def _printed(row: Any) -> str:
    text = json.dumps(_printable(row), ensure_ascii=False)
    return text if len(text) <= 300 else f"{text[:300]}..."
