"""Labels are validated by Great Expectations before a round trains on them."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ratchet.components.errors import GateError
from ratchet.components.labels.labels import Item, Label
from ratchet.tasks.data.label_validation import validated

ITEMS = [Item(f"i{n}", [{"role": "user", "content": "q"}], ["a", "b"]) for n in range(100)]
LABELS = [Label(item.id, "ann", 0, "choice", [1, 0], 2.5) for item in ITEMS]
BAD = {
    "the comparison is in the queue": {"item": "elsewhere"},
    "the order shows each of its answers once": {"order": [2, 0, 1]},
    "the annotator is a pseudonym without personal data": {"annotator": "ann@example.org"},
    "the seconds are a number from 0": {"seconds": float("nan")},
}


def test_labels_that_are_right_pass(tmp_path: Path) -> None:
    assert validated(ITEMS, LABELS, tmp_path) == LABELS
    report = json.loads((tmp_path / "validation.json").read_text())
    assert report["success"] and report["labels"] == 100 and report["quarantined"] == 0
    assert [check["says"] for check in report["expectations"]] == list(BAD)
    assert validated(ITEMS, [], tmp_path / "none") == []


@pytest.mark.parametrize("says", BAD)
def test_a_label_that_breaks_an_expectation_is_quarantined_with_the_reason(says: str, tmp_path: Path) -> None:
    kept = validated(ITEMS, [replace(LABELS[0], **BAD[says]), *LABELS[1:]], tmp_path)
    assert kept == LABELS[1:]
    (line,) = [json.loads(line) for line in (tmp_path / "quarantined.jsonl").read_text().splitlines()]
    assert line["broke"] == [says]


def test_too_many_bad_labels_stop_the_run(tmp_path: Path) -> None:
    bad = [replace(one, item="elsewhere") for one in LABELS[:3]]
    with pytest.raises(GateError, match=r"3 of 100 \(3.0%\)"):
        validated(ITEMS, [*bad, *LABELS[3:]], tmp_path)
    assert len((tmp_path / "quarantined.jsonl").read_text().splitlines()) == 3
