"""Columns of a recipe's data that nothing reads: what a misunderstood layout leaves out without an error."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from ratchet.components.recipes.sections import DataSource

ANY_LAYOUT = frozenset(
    {"id", "answer", "label", "meta", "rating", "ratings", "source", "topic", "image", "images"}
)
"""Columns that are read whatever the parser is."""


class Asked(Mapping[str, Any]):
    """A row that adds to `asked` the columns whose values are asked for."""

    def __init__(self, row: Mapping[str, Any], asked: set[str]) -> None:
        self._row, self._asked = row, asked

    def __getitem__(self, name: str) -> Any:
        self._asked.add(name)
        return self._row[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._row)

    def __len__(self) -> int:
        return len(self._row)


def unread_columns(sources: Iterable[tuple[Path, DataSource]], most: int) -> list[str]:
    """Columns with a value, in the first `most` rows of each file that a parser can read, of which no parser
    asks for the value in any row.
    """
    from ratchet.components.data.choose_parser import chooser
    from ratchet.components.data.files import read_rows
    from ratchet.components.data.images import without_images
    from ratchet.components.data.parsing import GROUPS, TESTS, renamed
    from ratchet.components.data.published import published

    unread = dict[str, None]()
    for path, source in sources:
        choose = chooser(source.parser)
        parts = {theirs.partition(".")[0] for theirs in source.columns.values()}  # `old` of `old.label`
        have, asked = dict[str, None](), {*ANY_LAYOUT, *TESTS, *source.columns, *parts}
        for _, file in published(path, source.config, source.splits):
            for _, row in islice(read_rows(file), most):
                if not isinstance(row, Mapping) or set(row) >= GROUPS:
                    continue
                try:
                    row, _ = without_images(renamed(row, source.columns))
                    choose(row)[1](Asked(row, asked))
                except (ValueError, KeyError, TypeError, AttributeError, IndexError):
                    continue  # curation counts it, with the reason
                have |= dict.fromkeys(name for name, value in row.items() if value not in (None, "", [], {}))
        unread |= dict.fromkeys(name for name in have if name not in asked)
    return list(unread)
