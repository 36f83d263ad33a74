"""Parsing of rows to records with the pieces in `components/pieces/parsers`, one per published layout.

A parser takes a row and returns its records (several if the row holds several pairs) or raises `ValueError`.
Its `reads` are the columns that the layout requires, its `writes` what it adds besides the prompt. `auto`
picks, for each row, the parser with the most `reads` among those whose columns are all present.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from difflib import SequenceMatcher, get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any

from ratchet.components.data.files import read_rows
from ratchet.components.data.groups import read_groups
from ratchet.components.data.messages import score_of
from ratchet.components.data.published import published
from ratchet.components.data.records import Conversation, FilterResult, Rejected
from ratchet.components.errors import DataError
from ratchet.components.piece import Description, build, catalogue
from ratchet.components.recipes.splits import SPLIT_COLUMN

Parser = Callable[[Mapping[str, Any]], Sequence[Conversation]]
RENAMED = "renamed: duplicate id"
GROUPS = {"group", "prompt_id", "completion"}
PAIR = frozenset({"chosen", "rejected"})
"""Columns that only mean something together."""
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
) -> FilterResult:
    """Records of a file or folder; unreadable rows are dropped with a reason. `columns` maps a layout's
    column names to the file's; its key `split` names the column with each row's published split (a "split" in
    the sense of Hugging Face datasets). `config` and
    `splits` as in `published`; `most` limits the rows per file.
    `DataError` if no row is usable, `RecipeError` for an unknown parser.
    """
    choose = _chooser(parser)
    kept: list[Conversation] = []
    dropped: list[Rejected] = []
    first: Any = None
    layouts: Counter[str] = Counter()
    for split, file in published(path, config, splits):
        for i, (where, row) in enumerate(islice(read_rows(file), most)):
            key = f"{file.name.partition('.')[0]}-{i}"
            first = row if first is None else first
            if isinstance(row, Mapping) and set(row) >= GROUPS:
                kept.extend(_from_groups(file, split))
                break
            try:
                if isinstance(row, DataError):
                    raise ValueError(str(row))
                if not isinstance(row, Mapping):
                    raise ValueError(
                        f"the row is a {type(row).__name__}, expected an object with named columns"
                    )
                row = _renamed(row, columns or {})
                name, layout = choose(row)
                named = key if row.get("id") is None else str(row["id"])
                own = str(row.get(SPLIT_COLUMN) or "") if SPLIT_COLUMN in (columns or {}) else split
                kept.extend(_finished(layout(row), row, named, own))
                layouts.update([f"read as `{name}`"] if name else [])
            except (ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
                dropped.append(Rejected(key, f"{_reason(error)}: {where}", _printable(row)))
    if not kept:
        why = (
            f"all {len(dropped)} rows are invalid, the first because: {dropped[0].reason}; the row: "
            f"{_printed(first)}"
            if dropped
            else "it is empty"
        )
        if dropped and parser != "auto":
            given = parser if isinstance(parser, str) else parser["name"]
            why += f"; `data.parser` is {given!r}, and with `auto` the columns decide how a row is read"
        raise DataError(f"{path} holds no usable record: {why}")
    return unique(FilterResult(kept, dropped, layouts))


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


def _chooser(parser: str | Mapping[str, Any]) -> Callable[[Mapping[str, Any]], tuple[str, Parser]]:
    """Function from a row to (name, parser); the name is empty if the recipe fixes the parser."""
    if parser != "auto":
        only = build("parser", {"name": parser} if isinstance(parser, str) else parser)
        return lambda row: ("", only)
    known = catalogue("parser")
    built = {name: build("parser", {"name": name}) for name in known}
    chosen: dict[tuple[frozenset[str], frozenset[str]], tuple[str, Parser]] = {}

    def choose(row: Mapping[str, Any]) -> tuple[str, Parser]:
        columns = frozenset(name for name, value in row.items() if value is not None)
        key = (columns, frozenset(row))
        if key not in chosen:
            fitting = [d for d in known.values() if d.reads <= columns]
            if not fitting:
                raise ValueError(_unknown(columns, known))
            found = max(fitting, key=lambda d: (len(d.reads), len(d.writes), d.name))
            wider = [d for d in known.values() if found.reads < d.reads <= frozenset(row)]
            if wider:  # null columns must not select a smaller layout than intended
                nearest = min(wider, key=lambda d: (len(d.reads), d.name))
                raise ValueError(
                    f"the row has no value for {', '.join(sorted(nearest.reads - columns))}, which "
                    f"`{nearest.name}` needs"
                )
            if hint := _misspelt(columns, found, known) or _half_a_pair(columns, found):
                raise ValueError(hint)
            chosen[key] = found.name, built[found.name]
        return chosen[key]

    return choose


def layout_of(path: Path) -> str:
    """Name of the parser that `auto` selects for the first readable row; empty if there is none."""
    choose = _chooser("auto")
    for _, file in published(path):
        for _, row in read_rows(file):
            with contextlib.suppress(ValueError):
                if isinstance(row, Mapping):
                    return choose(row)[0]
    return ""


def _half_a_pair(columns: frozenset[str], found: Description) -> str:
    """What is wrong if a row has one answer of a preference pair and would be read without it; else empty."""
    have = columns & PAIR
    if len(have) != 1 or have <= found.reads:
        return ""
    ((one,), (other,)) = have, PAIR - have
    return (
        f"the row has {one!r} and no {other!r}, which a preference pair needs (the parser {found.name!r} in "
        "`data.parser` reads such rows without it)"
    )


def _misspelt(columns: frozenset[str], found: Description, known: Mapping[str, Description]) -> str:
    """Hint if a misspelt column name made a row match a smaller layout; else empty."""
    for layout in known.values():
        missing = layout.reads - columns
        if len(layout.reads) > len(found.reads) and len(missing) == 1:
            (need,) = missing
            if near := get_close_matches(need, sorted(columns - layout.reads), 1, 0.8):
                return (
                    f"the row has a column {near[0]!r}, and would be read as `{found.name}` without it; "
                    f"`{layout.name}` reads {need!r}. Write "
                    f"`data.columns: {{{need}: {near[0]}}}`, or `data.parser: {found.name}` to leave it out"
                )
    return ""


def _unknown(columns: frozenset[str], known: Mapping[str, Description]) -> str:
    """Error message for a row without a known layout: the nearest layout and the missing columns."""

    def likeness(layout: Description) -> float:
        return sum(
            max((SequenceMatcher(None, need, name).ratio() for name in columns), default=0)
            for need in layout.reads
        ) / len(layout.reads)

    near = max(known.values(), key=lambda d: (likeness(d), len(d.reads), d.name))
    message = f"no known layout: the row has the columns {', '.join(sorted(columns)) or '(none)'}"
    if likeness(near) < 0.5:
        return (
            f"{message}, which resemble none of {', '.join(sorted(known))}; see docs/data.md for their "
            "columns and how to add a parser"
        )
    free = sorted(columns - near.reads)
    guesses = {
        need: (get_close_matches(need, free, 1, 0.5) or (free if len(free) == 1 else ["..."]))[0]
        for need in sorted(near.reads - columns)
    }
    mapped = ", ".join(f"{need}: {guess}" for need, guess in guesses.items())
    return (
        f"{message}; the nearest is `{near.name}` with "
        f"{', '.join(sorted(near.reads))}, of which {', '.join(guesses)} is missing. To map another "
        "column, write "
        f"`data.columns: {{{mapped}}}`; docs/data.md lists the layouts and how to add a parser"
    )


def _renamed(row: Mapping[str, Any], columns: Mapping[str, str]) -> Mapping[str, Any]:
    """The row with the layout's column names; `a.b` addresses `b` in the object `a`."""
    found: dict[str, Any] = {}
    for name, theirs in columns.items():
        value: Any = row
        for part in [theirs] if theirs in row else theirs.split("."):
            if not isinstance(value, Mapping) or part not in value:
                raise ValueError(
                    f"data.columns.{name}: the row has no column {theirs!r}, it has "
                    f"{', '.join(map(str, row))}"
                )
            value = value[part]
        found[name] = value
    kept = {name: value for name, value in row.items() if name not in columns.values()}
    return {**kept, **found}


def _finished(
    records: Sequence[Conversation], row: Mapping[str, Any], key: str, split: str
) -> list[Conversation]:
    """Add id and optional fields of any layout to the records: topic, ratings, answer, source, meta."""
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
    rating = score_of("rating", row.get("rating", sum(ratings.values()) / len(ratings) if ratings else None))
    return [
        replace(
            record,
            id=key if len(records) == 1 else f"{key}-{i}",
            topic=record.topic or (None if topic is None else str(topic)) or None,
            rating=rating if record.rating is None else record.rating,
            ratings=record.ratings or ratings,
            label=row["label"]
            if record.label is None and isinstance(row.get("label"), bool)
            else record.label,
            answer=record.answer
            if record.answer is not None or row.get("answer") is None
            else str(row["answer"]),
            source=record.source or str(row.get("source") or ""),
            meta={**meta, **record.meta},
            published=split,
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
            )
        )
    return found


def _reason(error: Exception) -> str:
    """Error message of an unreadable row; for unexpected exceptions with the exception type."""
    if isinstance(error, KeyError):
        return f"the column {error} is missing"
    return (
        str(error)
        if type(error) in (ValueError, DataError)
        else f"broken structure: {type(error).__name__} {error}"
    )


def _printable(row: Any) -> Any:
    return str(row) if isinstance(row, Exception) else json.loads(json.dumps(row, default=str))


def _printed(row: Any) -> str:
    text = json.dumps(_printable(row), ensure_ascii=False)
    return text if len(text) <= 300 else f"{text[:300]}..."
