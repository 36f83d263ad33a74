"""Which parser reads a row: by its columns, with hints for misspelt and missing ones."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from difflib import SequenceMatcher, get_close_matches
from pathlib import Path
from typing import Any

from ratchet.components.data.files import read_rows
from ratchet.components.data.published import published
from ratchet.components.data.records import Conversation
from ratchet.components.piece import Description, build, catalogue

Parser = Callable[[Mapping[str, Any]], Sequence[Conversation]]
PAIR = frozenset({"chosen", "rejected"})
"""Columns that only mean something together."""


def chooser(parser: str | Mapping[str, Any]) -> Callable[[Mapping[str, Any]], tuple[str, Parser]]:
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
    choose = chooser("auto")
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
