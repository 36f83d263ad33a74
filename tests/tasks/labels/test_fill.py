"""`ratchet label` over a run: filling the queue, serving, exporting to a recipe, forgetting an annotator."""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ratchet.components.data.groups import read_groups, write_groups
from ratchet.components.errors import RecipeError
from ratchet.components.labels.labels import Item, Label, append_durably, read_items, read_labels
from ratchet.components.labels.quality import random_annotators
from ratchet.components.labels.queue import Queue
from ratchet.components.labels.settings import Settings, make_queue, read_settings
from ratchet.components.labels.simulate import Annotator, take_turns
from ratchet.components.storage.run_directory import RunDirectory
from ratchet.components.storage.store import Store, digest
from ratchet.components.types import Group, Prompt, Trajectory
from ratchet.flows.cli import app
from ratchet.tasks.labels.fill import fill
from ratchet.tasks.labels.readers import readers
from ratchet.tasks.pipeline import Pipeline


def groups(prompts: int, answers: int) -> list[Group]:
    return [
        Group(
            Prompt(f"p{i}", ({"role": "user", "content": f"question {i}"},)),
            tuple(
                Trajectory(({"role": "assistant", "content": f"answer {j}"},), weights="w")
                for j in range(answers)
            ),
            {"reward.exact_answer": [float(j) for j in range(answers)]},
        )
        for i in range(prompts)
    ]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run with demonstrate, whose answers lie beside its data sets, rollout_1 (one answer a prompt),
    annotate_1 and select_1.
    """
    store, run = Store(tmp_path), RunDirectory(tmp_path, "fake-1")
    run.open("recipe: {}\n")
    stages = {}
    for name, content in {
        "demonstrate": groups(5, 2),
        "rollout_1": groups(6, 1), "annotate_1": groups(6, 3), "select_1": groups(2, 2),
    }.items():  # fmt: skip
        with store.working(name, digest(name)) as work:
            kind = "answers" if name == "demonstrate" else "groups"
            write_groups(work.product / f"{kind}.parquet", content)
            does = name.partition("_")[0]
            made = {"does": does, "options": {"round": 1}, "inputs": {"policy": "sft"}}
            stage = store.publish(work, name, digest(name), "groups", ["policykey"], {}, made)
        run.link(name, stage.path)
        stages[name] = stage.digest
    run.record(recipe="fake", state="finished", started=0.0, stages=stages)
    return run.path


def test_a_queue_asks_for_the_labels_that_are_wanted(run: Path, tmp_path: Path) -> None:
    said = fill(tmp_path / "q", run, Settings(overlap=0.25), labels=10, repeats=0.25)
    items = read_items(tmp_path / "q")
    assert "annotate_1" in said and sum(item.repeat_of is None for item in items) == 8
    assert sum(item.repeat_of is not None for item in items) == 2
    assert {item.round for item in items} == {1} and {item.policy for item in items} == {"w"}
    assert read_settings(tmp_path / "q").overlap == 0.25


def test_a_random_clicker_is_found_with_the_defaults_of_the_command(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In two of three sessions of 40 labels each, and in none without overlap. How often in 200 sessions is
    in docs/label-quality.md (`benchmarks.annotators`).
    """
    monkeypatch.setattr("ratchet.flows.commands.label._serve", lambda *_: None)
    write_groups((run / "stages" / "annotate_1").resolve() / "groups.parquet", groups(166, 2))
    command = ["label", str(run), "--home", str(tmp_path), "--stage", "annotate_1", "--annotators", "a,b"]
    queue, found = tmp_path / "labels" / run.name / "annotate_1", {"0.2": 0, "0": 0}
    people = [*(Annotator(f"good-{i}") for i in range(4)), Annotator("clicker", error=0.5)]
    for seed, overlap in itertools.product((1, 2, 3), found):
        shutil.rmtree(queue, ignore_errors=True)
        more = ["--overlap", overlap, "--repeats", "0"] if overlap == "0" else []
        CliRunner().invoke(app, [*command, "--seed", str(seed), *more], catch_exceptions=False)
        items, rng = read_items(queue), random.Random(seed)
        better = {item.id: rng.randrange(2) for item in items}
        better |= {item.id: better[item.repeat_of] for item in items if item.repeat_of}
        with Queue(queue) as opened:
            labels = take_turns(opened, people, better, each=40, seed=seed)
        found[overlap] += "clicker" in random_annotators(items, labels)
    assert found == {"0.2": 2, "0": 0}


@pytest.mark.parametrize(("names", "expected"), [("", 0.0), ("ann", 0.0), ("ann,ben", 0.2)])
def test_pairs_are_shared_by_default_where_two_annotators_are_named(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: str, expected: float
) -> None:
    """One annotator alone could not finish a queue with pairs for two."""
    monkeypatch.setattr("ratchet.flows.commands.label._serve", lambda *_: None)
    command = ["label", str(run), "--home", str(tmp_path), "--stage", "annotate_1", "--annotators", names]
    CliRunner().invoke(app, command, catch_exceptions=False)
    assert read_settings(tmp_path / "labels" / run.name / "annotate_1").overlap == expected


@pytest.mark.parametrize(
    ("overlap", "common", "expected"), [(0.25, None, 2), (0.0, None, 0), (0.0, 3, 3), (0.25, 0, 0)]
)
def test_everybody_begins_with_a_quarter_of_the_pairs_if_some_overlap(
    run: Path, tmp_path: Path, overlap: float, common: int | None, expected: int
) -> None:
    fill(tmp_path / "q", run, Settings(overlap=overlap), labels=10, common=common)
    assert read_settings(tmp_path / "q").common == expected


def test_a_stage_and_a_selector_may_be_named(run: Path, tmp_path: Path) -> None:
    fill(tmp_path / "a", run, Settings(), stage="select_1")
    assert len(read_items(tmp_path / "a")) == 2
    fill(
        tmp_path / "b",
        run,
        Settings(),
        stage="annotate_1",
        select="{name: all_pairs, reward: reward.exact_answer}",
    )
    assert len(read_items(tmp_path / "b")) == 18


def test_answers_of_demonstrate_are_compared(run: Path, tmp_path: Path) -> None:
    assert "demonstrate" in fill(tmp_path / "a", run, Settings(), stage="demonstrate")
    assert len(read_items(tmp_path / "a")) == 5


def test_what_cannot_be_compared_is_an_error(run: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="rollout_1"):
        fill(tmp_path / "a", run, Settings(), stage="rollout_1")
    with pytest.raises(RecipeError, match="did you mean 'annotate_1'"):
        fill(tmp_path / "a", run, Settings(), stage="annotate_2")


def test_other_machines_need_personal_links(run: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["label", str(run), "--home", str(tmp_path), "--host", "192.0.2.1"])
    assert isinstance(done.exception, RecipeError) and "--annotators" in str(done.exception)
    assert not (tmp_path / "labels").exists()


def test_a_queue_that_does_not_exist_is_not_closed(run: Path, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["label", str(run), "--home", str(tmp_path), "--close"])
    assert isinstance(done.exception, RecipeError) and "no labelling queue to close" in str(done.exception)
    assert not (tmp_path / "labels").exists()


def test_a_killed_server_continues_with_the_same_command(run: Path, tmp_path: Path) -> None:
    import httpx2

    command = [sys.executable, "-m", "ratchet.flows.cli", "label", str(run), "--home", str(tmp_path)]
    command += ["--labels", "4", "--port", "0"]
    seen = []
    for number in range(2):
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout
            base = next(line.split()[1] for line in server.stdout if line.startswith("page"))
            header = {"X-Annotator": "ann"}
            view = httpx2.get(f"{base}/api/next", headers=header).json()
            assert view["progress"]["judged"] == number
            seen.append(view["item"]["id"])
            body = {"item": seen[-1], "verdict": "choice", "position": 0, "seconds": 1}
            assert httpx2.post(f"{base}/api/labels", json=body, headers=header).status_code == 200
        finally:
            os.kill(server.pid, signal.SIGKILL)
            server.wait()
    assert len(set(seen)) == 2 == len(read_labels(tmp_path / "labels" / "fake-1" / "newest"))


def test_labels_become_a_data_set_of_a_recipe_and_one_annotator_is_forgotten(
    fresh_home: Callable[[str], Path], tmp_path: Path
) -> None:
    queue, words, home = tmp_path / "q", random.Random(1), fresh_home("home")

    def text() -> str:
        return " ".join("".join(words.choices("abcdefghijklmnop", k=6)) for _ in range(8))

    items = [Item(f"i{i}", [{"role": "user", "content": text()}], [text(), text()]) for i in range(60)]
    make_queue(queue, items)
    labels = [
        Label(one.id, "ann" if i % 3 else "ben", i % 2, "choice", [1, 0], 3.0) for i, one in enumerate(items)
    ]
    append_durably(queue / "labels.jsonl", labels)
    done = CliRunner().invoke(app, ["label", str(queue), "--export", str(tmp_path / "pairs.parquet")])
    assert done.exit_code == 0 and "60 pairs" in done.output

    recipe = tmp_path / "labelled.yaml"
    recipe.write_text(
        f"schema: 1\nbase: reward\nabout: from people\ndata: {{source: 'path:{tmp_path}/pairs.parquet'}}\n"
    )
    checked = CliRunner().invoke(app, ["recipes", "check", str(recipe)])
    assert checked.exit_code == 0, checked.output
    pipeline = Pipeline.open(str(recipe), home=home, profile="test")
    for name in [one for one, stage in pipeline.stages.items() if stage.part == "curate"]:
        if pipeline.stages[name].does != "validate":
            pipeline.make(name)
    drafts = next(one for one, stage in pipeline.stages.items() if stage.does == "curate")
    curated = pipeline.artifact(drafts).path
    pairs = [g for name in ("reward", "reward_validation") for g in read_groups(curated / f"{name}.parquet")]
    by_prompt = {item.prompt[0]["content"]: (item, label) for item, label in zip(items, labels, strict=True)}
    assert len(pairs) >= 55
    for pair in pairs:
        item, label = by_prompt[pair.prompt.messages[-1]["content"]]
        assert pair.trajectories[0].text == item.answers[label.choice or 0]
        assert pair.prompt.meta["annotator"] == label.annotator

    pipeline.run.record(recipe="labelled", state="finished", started=0.0)
    (found,) = readers(home, "ben")
    assert 15 <= found.labels <= 20 and found.run == pipeline.run.name and not readers(home, "be")
    done = CliRunner().invoke(app, ["label", str(queue), "--home", str(home), "--forget", "ben"])
    assert done.exit_code == 0 and "20 labels of ben deleted" in done.output
    assert pipeline.run.name in done.output
    assert {label.annotator for label in read_labels(queue)} == {"ann"} and len(read_labels(queue)) == 40
    assert "ben" not in json.dumps((queue / "labels.jsonl").read_text())


def test_only_models_that_descend_from_an_annotators_labels_are_listed(tmp_path: Path) -> None:
    store, run = Store(tmp_path), RunDirectory(tmp_path, "fake-1")
    run.open("recipe: {}\n")
    labelled = [
        Group(Prompt("p", (), meta={"annotators": ["ann", "ben"]}), one.trajectories) for one in groups(1, 2)
    ]
    digests: dict[str, str] = {}
    for name, kind, parents in (
        ("sft", "weights", []), ("ask_1", "groups", ["sft"]), ("optimise_1", "weights", ["ask_1"])
    ):  # fmt: skip
        with store.working(name, digest(name)) as work:
            if kind == "groups":
                write_groups(work.product / "groups.parquet", labelled)
            else:
                (work.product / "model.safetensors").write_text(name)
            made = {"does": name.partition("_")[0], "inputs": {one: one for one in parents}}
            stage = store.publish(work, name, digest(name), kind, [digests[p] for p in parents], {}, made)
        run.link(name, stage.path)
        digests[name] = stage.digest
    run.record(
        recipe="fake", state="finished", started=0.0, stages=digests, registered={"optimise_1": "fake:1"}
    )
    assert [one.models for one in readers(tmp_path, "ben")] == [("optimise_1 (fake:1)",)]
    assert readers(tmp_path, "eve") == []
