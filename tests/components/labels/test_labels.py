"""Records of human labels: round trip through JSON Lines, validation, retractions, incomplete lines."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ratchet.components.errors import DataError, SourceError
from ratchet.components.labels.labels import (
    Item,
    Label,
    Retraction,
    append_durably,
    read_items,
    read_labels,
    repair,
)

ITEM = Item("a", [{"role": "user", "content": "line\u2028separator"}], ["one\ntwo", "<b>"], policy="d1")
LABEL = Label("a", "ann", 1, "choice", [1, 0], 2.5, "short", {"helpful": 4}, "2026-01-01T00:00:00+00:00")


def test_items_and_labels_survive_a_round_trip(tmp_path: Path) -> None:
    append_durably(tmp_path / "items.jsonl", [ITEM])
    append_durably(tmp_path / "labels.jsonl", [LABEL])
    assert read_items(tmp_path) == [ITEM]
    assert read_labels(tmp_path) == [LABEL]


def test_a_queue_without_a_label_file_has_no_labels(tmp_path: Path) -> None:
    assert read_labels(tmp_path) == []
    with pytest.raises(SourceError):
        read_items(tmp_path)


def test_a_retracted_label_does_not_stand_and_the_last_one_wins(tmp_path: Path) -> None:
    other = replace(LABEL, annotator="ben")
    changed = replace(LABEL, choice=0)
    append_durably(tmp_path / "labels.jsonl", [LABEL, other, Retraction("a", "ben"), changed])
    assert read_labels(tmp_path) == [changed]


@pytest.mark.parametrize(
    "change",
    [{"verdict": "maybe"}, {"choice": 2}, {"choice": None}, {"verdict": "tie"}, {"order": [0, 0]}],
    ids=str,
)
def test_an_inconsistent_label_is_refused(change: dict) -> None:
    with pytest.raises(DataError):
        replace(LABEL, **change)


@pytest.mark.parametrize(
    "change",
    [{"answers": ["one"]}, {"planted": 2}, {"prompt": [{"role": "god", "content": ""}]}, {"id": ""}],
    ids=str,
)
def test_an_invalid_item_is_refused(change: dict) -> None:
    with pytest.raises(DataError):
        replace(ITEM, **change)


def test_an_invalid_line_is_named(tmp_path: Path) -> None:
    file = tmp_path / "items.jsonl"
    append_durably(file, [ITEM, ITEM])
    with pytest.raises(DataError, match=r"line 2.*twice"):
        read_items(file)
    file.write_text('{"id": "x"}\n')
    with pytest.raises(DataError, match=r"line 1.*prompt"):
        read_items(file)


def test_an_incomplete_last_line_is_removed(tmp_path: Path) -> None:
    file = tmp_path / "labels.jsonl"
    append_durably(file, [LABEL])
    with file.open("a") as torn:
        torn.write('{"item": "b", "annot')
    repair(file)
    assert read_labels(file) == [LABEL]
