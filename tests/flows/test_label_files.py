"""`ratchet label` with --report, --export --layout and --import: labels and their quality in files."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ratchet.components.errors import DataError, RecipeError
from ratchet.components.labels.labels import LABELS, append_durably, read_items, read_labels
from ratchet.components.labels.settings import make_queue
from ratchet.components.labels.simulate import Annotator, simulate
from ratchet.flows.cli import app


def label(*arguments: object) -> str:
    done = CliRunner().invoke(app, ["label", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture
def queue(tmp_path: Path) -> Path:
    people = [Annotator("ann"), Annotator("ben", ties=0.2), Annotator("cleo", error=0.5)]
    session = simulate(people, each=40, planted=0.3, overlap=0.5, seed=3)
    folder = make_queue(tmp_path / "queue", session.items)
    append_durably(folder / LABELS, session.labels)
    return folder


def test_a_report_is_written_and_its_findings_are_printed(queue: Path, tmp_path: Path) -> None:
    said = label(queue, "--report", tmp_path / "quality.html")
    assert "120 labels" in said and "cleo is not distinguishable" in said
    assert "cleo is not distinguishable" in (tmp_path / "quality.html").read_text()
    label(queue, "--report", tmp_path / "quality.json")
    found = json.loads((tmp_path / "quality.json").read_text())
    assert found["annotators"]["cleo"]["chance"]["verdict"] == "random"
    with pytest.raises(RecipeError, match="html or"):
        label(queue, "--report", tmp_path / "quality.pdf")


@pytest.mark.parametrize(
    ("name", "layout"),
    [("l.jsonl", "jsonl"), ("l.parquet", "parquet"), ("l.json", "argilla"), ("l.json", "label_studio")],
)
def test_exported_labels_are_imported_into_a_queue_once(
    name: str, layout: str, queue: Path, tmp_path: Path
) -> None:
    label(queue, "--export", tmp_path / name, "--layout", layout)
    other = tmp_path / "other"
    assert "120 labels added, 0 were there" in label(other, "--import", tmp_path / name)
    assert "0 labels added, 120 were there" in label(other, "--import", tmp_path / name)
    assert read_items(other) == read_items(queue)
    assert sorted(read_labels(other), key=str) == sorted(read_labels(queue), key=str)


@pytest.mark.parametrize("wrong", [{"choice": 2, "order": [0, 1, 2]}, {"aspects": {"kind": 2}}])
def test_labels_that_do_not_fit_their_item_are_not_imported(wrong: dict, tmp_path: Path) -> None:
    row = {"item": "a", "prompt": [], "answers": ["x", "y"], "annotator": "ann", "choice": 1}
    row |= {"verdict": "choice", "order": [0, 1], "seconds": 1.0} | wrong
    (tmp_path / "l.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(DataError, match="item 'a'"):
        label(tmp_path / "q", "--import", tmp_path / "l.jsonl")
    assert not (tmp_path / "q").exists()


def test_labels_of_another_comparison_with_the_id_of_an_item_are_not_imported(
    queue: Path, tmp_path: Path
) -> None:
    label(queue, "--export", tmp_path / "l.jsonl", "--layout", "jsonl")
    file = tmp_path / "l.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    swapped = [row | {"answers": row["answers"][::-1], "annotator": "dan"} for row in rows]
    file.write_text("".join(json.dumps(row) + "\n" for row in swapped))
    with pytest.raises(DataError, match="another queue"):
        label(queue, "--import", file)
    assert {one.annotator for one in read_labels(queue)} == {"ann", "ben", "cleo"}


def test_an_unknown_layout_is_refused(queue: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="label_studio"):
        label(queue, "--export", tmp_path / "l.json", "--layout", "csv")


def test_a_stage_of_a_run_that_asked_people_is_a_queue_by_its_name(queue: Path, tmp_path: Path) -> None:
    """`ratchet label RUN/stages/ask_1` of docs/people.md, from any folder."""
    stage = tmp_path / "out" / "runs" / "people-1" / "stages" / "ask_1"
    stage.parent.mkdir(parents=True)
    stage.symlink_to(queue)
    named = ("people-1/stages/ask_1", "--home", tmp_path / "out")
    label(*named, "--export", tmp_path / "pairs.parquet")
    assert (tmp_path / "pairs.parquet").is_file()


@pytest.mark.parametrize("option", ["--export", "--report"])
def test_nothing_is_written_of_a_run_without_a_queue(option: str, tmp_path: Path) -> None:
    run = tmp_path / "out" / "runs" / "tiny-1"
    run.mkdir(parents=True)
    (run / "run.json").write_text('{"state": "finished", "stages": {}}')
    with pytest.raises(RecipeError, match=r"no labelling queue; `ratchet label` without --(export|report)"):
        label("tiny-1", "--home", tmp_path / "out", option, tmp_path / "quality.html")


@pytest.mark.parametrize("option", [("--close",), ("--forget", "ann"), ("--import", "labels.jsonl"), ()])
def test_labels_that_a_finished_stage_keeps_are_only_read(option: tuple[str, ...], queue: Path) -> None:
    """They are an output of the store, which is compared with its manifest byte for byte."""
    (queue / "manifest.json").write_text("{}")
    before = {path.name: path.read_bytes() for path in queue.iterdir()}
    with pytest.raises(RecipeError, match="--export and --report"):
        label(queue, "--port", 0, *option)
    assert {path.name: path.read_bytes() for path in queue.iterdir()} == before
