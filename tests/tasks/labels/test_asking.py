"""Rounds that ask people: the stage that waits, its deadline, simulated annotators over HTTP."""

from __future__ import annotations

import json
import random
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from uuid import UUID, uuid4

import pytest
import yaml
from prefect.exceptions import NotPausedError
from prefect.settings import PREFECT_API_URL, temporary_settings
from typer.testing import CliRunner

from ratchet.components.data.groups import read_groups, write_groups
from ratchet.components.errors import DataError, GateError, RecipeError, ServiceError
from ratchet.components.labels.labels import Item, Label, append_durably, read_items, read_labels
from ratchet.components.labels.quality import measure, random_annotators
from ratchet.components.labels.queue import Queue, Taken
from ratchet.components.labels.queue_files import close_queue
from ratchet.components.labels.scores import pair_weights, scored
from ratchet.components.labels.settings import doubled, make_queue, read_settings
from ratchet.components.labels.simulate import Annotator, take_turns
from ratchet.components.pieces.rewards.people import people
from ratchet.components.recipes.plan import our_sources
from ratchet.components.recipes.recipe import load
from ratchet.components.stages.ask import QUEUE, ask, count_labels, open_queue, wait
from ratchet.components.stages.job import Job
from ratchet.components.stages.propose import propose
from ratchet.components.storage.store import Workspace
from ratchet.components.types import Artifact, Context, Group, Prompt, Trajectory
from ratchet.flows.cli import app
from ratchet.tasks.labels.readers import readers
from ratchet.tasks.labels.run_page import FILE, RunPage, link_shown, page_of, unserved
from ratchet.tasks.labels.server import make_app, serving
from ratchet.tasks.labels.simulated import answer, truth
from ratchet.tasks.labels.tokens import issue
from ratchet.tasks.labels.waiting import (
    Asking,
    queue_of,
    reopen_without_labels,
    resume_if_over,
    set_deadline,
    suspend,
)
from ratchet.tasks.pipeline import Pipeline

SIMULATED = {"simulated": [0.1], "verifier": "rewards.length"}


def groups(prompts: int, answers: int = 3) -> list[Group]:
    return [
        Group(
            Prompt(f"p{i}", ({"role": "user", "content": f"q{i}"},)),
            tuple(Trajectory(({"role": "assistant", "content": f"a{j}"},)) for j in range(answers)),
        )
        for i in range(prompts)
    ]


@pytest.fixture
def job(tmp_path: Path) -> Job:
    work = Workspace(tmp_path / "work")
    for folder in (work.product, work.progress, tmp_path / "in"):
        folder.mkdir(parents=True, exist_ok=True)
    write_groups(tmp_path / "in" / "groups.parquet", groups(8))
    options = {"labels": 6, "overlap": 0.0, "common": None, "deadline_hours": 1.0, "repeats": 0.0,
               "guidelines": "", "simulated": ()}  # fmt: skip
    inputs = {name: Artifact("groups", tmp_path / "in", f"key-{name}") for name in ("groups", "policy")}
    return Job({"people": options, "round": 2, "seed": 0}, inputs, work)


def test_the_stage_waits_for_its_labels_and_scores_the_judged_answers(job: Job) -> None:
    """Simulated annotators without error answer the page over HTTP in another thread: a2 > a1 > a0."""
    folder, over = job.work.progress / QUEUE, threading.Event()
    rewards = {(f"q{i}", f"a{j}"): float(j) for i in range(8) for j in range(3)}

    def annotators() -> None:
        while not (folder / "items.jsonl").exists():
            over.wait(0.05)
        with Queue(folder) as queue, serving(make_app(queue)) as base:
            answer(base, [Annotator("x", 0.0), Annotator("y", 0.0)], rewards, over)

    thread = threading.Thread(target=annotators)
    thread.start()
    try:
        meta = ask(job)
    finally:
        over.set()
        thread.join()
    assert meta["counts"]["labels"] == 6 == meta["counts"]["labels asked"]
    assert meta["counts"]["annotators"] == 2 and meta["counts"]["prompts without a label"] == 2
    made = read_groups(job.work.product / "groups.parquet")
    assert len(made) == 6
    for group in made:
        texts = [one.text for one in group.trajectories]
        assert texts == sorted(texts) and group.columns["people"] == [0.0, 1.0], "the longer name is better"
        assert group.prompt.meta["annotators"] in (["x"], ["y"])
    assert len(read_labels(job.work.product)) == 6
    assert {item.round for item in read_items(job.work.product)} == {2}
    assert all({"annotator", "seconds", "reason"} <= group.columns.keys() for group in made)
    pairs = job.work.product / "pairs.parquet"
    CliRunner().invoke(app, ["label", str(job.work.product), "--export", str(pairs)], catch_exceptions=False)
    assert len(read_groups(pairs)) == 6
    for group in read_groups(pairs):
        assert set(group.columns) == {"annotator", "seconds", "reason", "label_weight"}
        assert group.columns["annotator"][0] in ("x", "y") and group.columns["seconds"][0] > 0
    columns = people(made, Context())
    assert columns["reward.people"] == [group.columns["people"] for group in made]
    assert columns["label_weight"] == [group.columns["label_weight"] for group in made]


def test_labels_through_the_page_are_those_that_the_annotators_would_give_directly(job: Job) -> None:
    """Rewards, and so all that learns from them, are what the same annotators make of the items without a
    page: they err in the same comparisons.
    """
    folder, over = job.work.progress / QUEUE, threading.Event()
    errors = {"x": 0.3, "y": 0.5}
    rewards = {(f"q{i}", f"a{j}"): float(j) for i in range(8) for j in range(3)}

    def annotators() -> None:
        while not (folder / "items.jsonl").exists():
            over.wait(0.05)
        with Queue(folder) as queue, serving(make_app(queue)) as base:
            answer(base, [Annotator(name, error) for name, error in errors.items()], rewards, over, seed=3)

    job.options["people"]["labels"] = 8
    thread = threading.Thread(target=annotators)
    thread.start()
    try:
        ask(job)
    finally:
        over.set()
        thread.join()
    made, items = read_groups(job.work.product / "groups.parquet"), read_items(job.work.product)
    direct = []
    for label in read_labels(job.work.product):
        item = next(one for one in items if one.id == label.item)
        shown = [item.answers[i] for i in label.order]
        values = [rewards[item.prompt[-1]["content"], text] for text in shown]
        own = Annotator(label.annotator, errors[label.annotator]).label(
            item, values.index(max(values)), range(2), random.Random(f"3/{label.annotator}/{item.id}")
        )
        assert own.choice is not None
        direct.append(replace(own, choice=label.order[own.choice], order=label.order))
    expected = scored(read_groups(job.path("groups") / "groups.parquet"), items, direct)
    assert [group.columns["people"] for group in made] == [group.columns["people"] for group in expected]
    columns = [column for group in made for column in group.columns["people"]]
    assert len(made) == 8 and columns != [0.0, 1.0] * 8, "some labels are wrong"


def test_an_edit_of_the_page_or_its_server_changes_no_store_key() -> None:
    """People would be asked again, also by a run that is suspended while they answer."""
    reached = our_sources().reached([("ratchet.components.stages.ask", "ask")])
    modules = {node.module for node in reached}
    assert "ratchet.tasks.labels.simulated" in modules
    assert "ratchet.tasks.labels.server" not in modules and all(one.what != "page.html" for one in reached)


def test_a_stage_that_was_killed_continues_with_the_labels_it_has(job: Job) -> None:
    folder = job.work.progress / QUEUE
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(
            "ratchet.components.stages.ask.wait", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt)
        )
        with pytest.raises(KeyboardInterrupt):
            ask(job)
    first = read_items(folder)
    append_durably(folder / "labels.jsonl", [Label(one.id, "ann", 0, "choice", [0, 1], 1.0) for one in first])
    assert ask(job)["counts"]["labels"] == 6 and read_items(folder) == first


def test_labels_that_fail_the_validation_reach_no_round(job: Job) -> None:
    """One of six labels has the e-mail address of its annotator: more than 2 %, so the run stops."""
    queue = open_queue(job)
    names = ["ann@example.org", *["ann"] * 5]
    labels = [
        Label(item.id, name, 0, "choice", [0, 1], 1.0) for item, name in zip(queue.items, names, strict=True)
    ]
    append_durably(queue.folder / "labels.jsonl", labels)
    with pytest.raises(GateError, match="pseudonym"):
        ask(job)
    assert not (job.work.product / "groups.parquet").exists()


def test_after_the_deadline_a_round_goes_on_with_fewer_labels_but_not_with_none(job: Job) -> None:
    folder = job.work.progress / QUEUE
    folder.mkdir()
    (folder / "opened").write_text("0")
    with pytest.raises(DataError, match="deadline"):
        ask(job)
    assert reopen_without_labels(folder), "`ratchet label RUN` does, so that another attempt can end"
    assert not (folder / "opened").exists() and not reopen_without_labels(folder)
    append_durably(folder / "labels.jsonl", [Label(read_items(folder)[0].id, "a", 1, "choice", [0, 1], 1.0)])
    (folder / "opened").write_text("0")
    assert ask(job)["counts"]["labels"] == 1
    assert not reopen_without_labels(folder), "it has a label"


def test_waiting_counts_no_skips_and_ends_at_the_deadline_or_when_closed(tmp_path: Path) -> None:
    make_queue(tmp_path, [Item(f"i{i}", [], ["a", "b"]) for i in range(1, 4)])
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        verdict: Any = ("skip", "tie", "tie")[len(slept) - 1]
        append_durably(tmp_path / "labels.jsonl", [Label(f"i{len(slept)}", "a", None, verdict, [0, 1], 1.0)])

    assert wait(tmp_path, 2, float("inf"), sleep=sleep) == 2 and len(slept) == 3
    assert wait(tmp_path, 9, 5.0, clock=lambda: 5.0) == 2
    close_queue(tmp_path)
    assert wait(tmp_path, 9, float("inf")) == 2


@pytest.mark.parametrize(("overlap", "common", "expected"), [(0.25, None, 2), (0.0, None, 0), (0.0, 3, 3)])
def test_everybody_begins_with_the_same_pairs_of_a_round(
    job: Job, overlap: float, common: int | None, expected: int
) -> None:
    job.options["people"].update(labels=10, overlap=overlap, common=common)
    waiting = open_queue(job)
    assert waiting.wanted == len(waiting.items) + round(overlap * len(waiting.items)), "common or not"
    assert len(waiting.items) in (8, 10) and read_settings(waiting.folder).common == expected
    with Queue(waiting.folder) as queue:
        people = [Annotator(name, error=0.0) for name in "xy"]
        labels = take_turns(queue, people, {item.id: 0 for item in waiting.items}, each=3)
        assert count_labels(waiting.folder) == queue.progress().judged
    judged = {name: {label.item for label in labels if label.annotator == name} for name in "xy"}
    first = {item.id for item in waiting.items[:expected]}
    assert first <= judged["x"] & judged["y"]
    beyond = len(first - doubled(waiting.items, read_settings(waiting.folder)))
    assert count_labels(waiting.folder) == len(labels) - beyond, "of a common pair one label is asked for"


def test_selectors_choose_the_pairs_of_a_round(job: Job, tmp_path: Path) -> None:
    """The longest against the shortest answer of each prompt, as `best_worst` by length proposes them."""
    answers = [
        replace(group, trajectories=tuple(
            replace(one, messages=({"role": "assistant", "content": text},), mask=[True] * len(text))
            for one, text in zip(group.trajectories, ("middle", "short", "the longest"), strict=True)
        ))
        for group in groups(3)
    ]  # fmt: skip
    write_groups(tmp_path / "in" / "groups.parquet", answers)
    options = {
        "annotate": [{"name": "rewards.length", "target": 100}], "max_failed": 0.1, "round": 2, "seed": 0,
        "select": [{"name": "best_worst", "reward": "reward.length"}],
    }  # fmt: skip
    assert propose(Job(options, job.inputs, job.work))["counts"]["groups"] == 3
    pairs = Artifact("groups", job.work.product, "key-pairs")
    queue = open_queue(Job(job.options, {**job.inputs, "pairs": pairs}, job.work))
    assert {frozenset(item.answers) for item in queue.items} == {frozenset(("short", "the longest"))}
    assert len(queue.items) == 3 and {item.prompt_id for item in queue.items} == {"p0", "p1", "p2"}
    labels = [Label(one.id, "ann", 0, "choice", [0, 1], 1.0) for one in queue.items]
    append_durably(queue.folder / "labels.jsonl", labels)
    (job.work.product / "groups.parquet").rename(tmp_path / "groups.parquet")
    pairs = Artifact("groups", tmp_path, "key-pairs")
    ask(Job(job.options, {**job.inputs, "pairs": pairs}, job.work))
    assert [len(group.trajectories) for group in read_groups(job.work.product / "groups.parquet")] == [2] * 3


def test_repeated_pairs_of_a_round_measure_annotators_and_count_as_no_label(job: Job) -> None:
    job.options["people"]["repeats"] = 0.5
    queue = open_queue(job)
    again = [item for item in queue.items if item.repeat_of]
    assert len(queue.items) == 9 and len(again) == 3 and queue.wanted == 6
    labels = [Label(one.id, "ann", 0, "choice", [0, 1], 1.0) for one in queue.items if not one.repeat_of]
    labels += [Label(one.id, "ann", 1, "choice", [0, 1], 1.0) for one in again]
    append_durably(queue.folder / "labels.jsonl", labels)
    counts = ask(job)["counts"]
    assert counts["labels"] == 9 and counts["pairs asked"] == 6
    assert measure(queue.items, labels)["annotators"]["ann"]["consistent"]["mean"] == 0
    for group in read_groups(job.work.product / "groups.parquet"):
        assert sorted(group.columns["people"]) == [0, 1], "the first label of a pair counts"


def test_a_random_clicker_is_found_in_the_queue_of_a_round_within_40_labels(job: Job, tmp_path: Path) -> None:
    """The default of 32 common pairs, and none, in three typical sessions each. How often a clicker is found
    in 400 sessions is in docs/label-quality.md (`benchmarks.annotators`).
    """
    write_groups(tmp_path / "in" / "groups.parquet", groups(200))
    people = [*(Annotator(f"good-{i}") for i in range(4)), Annotator("clicker", error=0.5)]
    found = {}
    for common in (0, None):
        job.options["people"].update(labels=200, overlap=0.2, common=common)
        found[common] = 0
        for seed in (5, 6, 7):
            shutil.rmtree(job.work.progress / QUEUE, ignore_errors=True)
            waiting = open_queue(Job({**job.options, "seed": seed}, job.inputs, job.work))
            rng = random.Random(seed)
            better = {item.id: rng.randrange(2) for item in waiting.items}
            with Queue(waiting.folder) as queue:
                labels = take_turns(queue, people, better, each=40, seed=seed)
            found[common] += "clicker" in random_annotators(waiting.items, labels)
    assert found[None] == 3 and found[0] <= 1
    close_queue(job.work.progress / QUEUE)
    meta = ask(Job({**job.options, "seed": 7}, job.inputs, job.work))
    assert meta["counts"]["annotators found random"] == 1 and "clicker" in meta["warnings"][0]


def test_a_closed_queue_takes_no_label(tmp_path: Path) -> None:
    make_queue(tmp_path, [Item("i", [], ["a", "b"])])
    close = ["label", str(tmp_path), "--close"]
    assert isinstance(CliRunner().invoke(app, close).exception, RecipeError), "a run needs a label"
    with Queue(tmp_path) as queue:
        queue.submit(Label("i", "ben", 0, "choice", [0, 1], 1.0))
        assert "closed with 1 labels" in CliRunner().invoke(app, close).output
        assert queue.next("ann") is None
        with pytest.raises(Taken):
            queue.submit(Label("i", "ann", 0, "choice", [0, 1], 1.0))
    assert [label.annotator for label in read_labels(tmp_path)] == ["ben"]


def test_scores_are_means_over_labels() -> None:
    items = [Item("i", [], ["a0", "a1"], prompt_id="p0"), Item("j", [], ["a1", "a2"], prompt_id="p0")]
    labels = [
        Label("i", "x", 0, "choice", [0, 1], 2.0, "why"),
        Label("i", "y", 1, "choice", [0, 1], 4.0),
        Label("j", "y", None, "tie", [0, 1], 6.0),
        Label("j", "z", None, "skip", [0, 1], 9.0),
        Label("gone", "z", 0, "choice", [0, 1], 9.0),
    ]
    (made,) = scored(groups(2), items, labels)
    assert made.columns["people"] == [0.5, pytest.approx((0 + 1 + 0.5) / 3), 0.5]
    assert made.columns["annotator"] == ["x,y", "x,y", "y"] and made.columns["seconds"] == [3.0, 4.0, 6.0]
    assert made.columns["reason"] == ["why", "why", ""] and made.prompt.meta["annotators"] == ["x", "y"]
    (bad,) = scored(groups(1), items, [Label("i", "x", None, "both_bad", [0, 1], 2.0)])
    assert bad.columns["people"] == [0.0, 0.0]


def test_comparisons_on_which_annotators_agree_weigh_most() -> None:
    items = [Item(name, [], ["a0", "a1"], prompt_id=f"p{i}") for i, name in enumerate("uvwst")]
    agreed = [Label(item, who, 1, "choice", [0, 1], 1.0) for item in "uvw" for who in "xyz"]
    split = [Label("s", who, choice, "choice", [0, 1], 1.0) for who, choice in (("x", 1), ("y", 1), ("z", 0))]
    tie = [Label("t", "x", None, "tie", [0, 1], 1.0)]
    weights = pair_weights(items, agreed + split + tie)
    assert set(weights) == set("uvws") and sum(weights.values()) == pytest.approx(4)
    assert weights["u"] == weights["v"] == weights["w"] > weights["s"] > 0
    made = scored(groups(5), items, agreed + split + tie)
    assert [one.columns["label_weight"] for one in made] == [[weights.get(name, 0.0)] * 2 for name in "uvwst"]
    assert pair_weights(items, tie) == {}


def test_simulated_annotators_that_fail_do_not_leave_the_stage_waiting(job: Job) -> None:
    job.options["people"].update(simulated=(0.1,), verifier="rewards.instructions")  # prompts without one
    with pytest.raises(DataError, match="nobody judged"):
        ask(job)


def test_a_run_that_waits_for_people_alerts_with_the_command_that_serves_the_page(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    sent: list[tuple[Any, ...]] = []
    monkeypatch.setattr("ratchet.tasks.labels.waiting.emit_alert", lambda *given: sent.append(given))
    server = FakeServer()
    monkeypatch.setattr("prefect.client.orchestration.get_client", lambda sync_client: server)
    monkeypatch.setenv("PREFECT__RUNTIME__FLOW_RUN__ID", str(UUID(int=8)))
    monkeypatch.setenv("PREFECT__RUNTIME__FLOW_RUN__ROOT_FLOW_RUN_ID", str(UUID(int=7)))
    real = ["online.annotate=[{name: rewards.people, labels: 40}]"]
    for overrides, alerts in ((real, 2), ([], 0)):
        pipeline = Pipeline.open("tiny_people", home=tmp_path, profile="test", overrides=overrides)
        sent.clear()
        with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:4200/api"}):
            for stage in pipeline.stages.values():
                Asking(pipeline).started(stage, tmp_path)
        assert len(sent) == alerts, "one alert a round"
        assert all("waits for 40 labels" in given[2] for given in sent)
        assert all(f"ratchet label {pipeline.run.path}" in str(given) for given in sent)
        if not alerts:
            continue
        (note,) = server.artifacts.values()
        assert note.data == sent[-1][2] and note.flow_run_id == UUID(int=7), "not the page of a round"
        queue = queue_of(tmp_path, "ask_1", pipeline.stages["ask_1"].key)
        assert page_of(queue) == RunPage("http://127.0.0.1:4200/api", UUID(int=7))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"cadence": "step"}, "cadence: round"),
        ({"rollout": {"name": "sample", "responses_per_prompt": 1}}, "responses_per_prompt"),
        ({"annotate": [{"name": "rewards.people", "simulated": [0.1]}]}, "verifier"),
        ({"annotate": [{"name": "rewards.people", "verifier": "rewards.length"}]}, "simulated"),
        (
            {"annotate": [{"name": "rewards.people", **SIMULATED, "verifier": "rewards.lenght"}]},
            "rewards.length",
        ),
        (
            {"annotate": [{"name": "rewards.people", "overlap": 0.5, **SIMULATED}]},
            "two simulated",
        ),
        ({"annotate": [{"name": "rewards.people", "labels": 0}]}, "labels"),
        ({"annotate": [{"name": "rewards.people", "select": ["divers"]}]}, "diverse"),
        (
            {"annotate": [{"name": "rewards.people", "select": ["small_margins"]}, "rewards.length"]},
            "no earlier piece writes",
        ),
        ({"annotate": [{"name": "rewards.people", "select": ["replay"]}]}, "state"),
    ],
    ids=lambda one: str(one)[:40],
)  # fmt: skip
def test_a_recipe_that_cannot_ask_is_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    file = tmp_path / "asks.yaml"
    file.write_text(yaml.safe_dump({"schema": 1, "base": "tiny_people", "about": "x", "online": change}))
    with pytest.raises(RecipeError, match=said):
        load(str(file))


@pytest.mark.slow
def test_a_round_with_simulated_annotators_on_the_real_page(fresh_home: Callable[[str], Path]) -> None:
    """Rollout, labels over HTTP, pairs: the chosen answer is the one that most labels prefer."""
    pipeline = Pipeline.open(
        "tiny_people", home=fresh_home("home"), profile="test",
        overrides=["online.rounds=1", "online.prompts_per_round=8", "online.rollout.max_tokens=8"],
    )  # fmt: skip
    for name, stage in pipeline.stages.items():
        if stage.part != "evaluate":
            pipeline.make(name)
    asked, chosen = pipeline.artifact("ask_1"), pipeline.artifact("select_1")
    labels = read_labels(asked.path)
    assert {label.annotator for label in labels} == {"simulated-1", "simulated-2"}
    counts = asked.meta["counts"]
    assert counts["labels"] == len(labels) and 0 <= len(labels) - counts["labels asked"] <= 2, "common: 2"
    pairs = read_groups(chosen.path / "groups.parquet")
    assert pairs and all(g.columns["reward.people"][0] > g.columns["reward.people"][1] for g in pairs)
    pipeline.run.record(
        recipe="x", state="finished", started=0.0, stages={n: s.key for n, s in pipeline.stages.items()}
    )
    (reader,) = readers(pipeline.store.home, "simulated-1")
    assert reader.models == ("optimise_1",) and 0 < reader.labels <= len(labels)
    parents = json.loads((asked.path / "manifest.json").read_text())["parents"]
    assert parents == [pipeline.artifact(name).digest for name in ("rollout_1", "model_policy")]


@pytest.mark.slow
def test_people_answer_a_run_that_waits_and_the_page_ends_when_it_goes_on(
    fresh_home: Callable[[str], Path],
) -> None:
    home = fresh_home("home")
    pipeline = Pipeline.open(
        "tiny_people", home=home, profile="test",
        overrides=["online.annotate=[{name: rewards.people, labels: 4}]", "online.rollout.max_tokens=8"],
    )  # fmt: skip
    pipeline.begin()
    for name in list(pipeline.stages)[: list(pipeline.stages).index("ask_1")]:
        pipeline.make(name)
    waiting = threading.Thread(target=pipeline.make, args=("ask_1",), daemon=True)
    waiting.start()
    folder = queue_of(home, "ask_1", pipeline.stages["ask_1"].key)
    while not (folder / "items.jsonl").exists():
        assert waiting.is_alive()
        time.sleep(0.05)
    command = [sys.executable, "-m", "ratchet.flows.cli", "label", pipeline.run.name, "--home", str(home)]
    page = subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE, text=True)
    over = threading.Event()
    try:
        assert page.stdout
        base = next(line.split()[1] for line in page.stdout if line.startswith("page"))
        rewards = truth(read_groups(pipeline.artifact("rollout_1").path / "groups.parquet"), "rewards.length")
        args = (base, [Annotator("ann", 0.0)], rewards, over)
        person = threading.Thread(target=answer, args=args, daemon=True)
        person.start()
        waiting.join(60)
        over.set()
        assert "went on" in page.stdout.read(), "the page ends by itself"
        assert page.wait(30) == 0
    finally:
        over.set()
        page.kill()
        page.wait()
    assert pipeline.artifact("ask_1").meta["counts"]["labels"] == 4


def test_an_unanswered_queue_suspends_a_deployed_run_and_the_page_resumes_it_when_it_is_over(
    job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resumed: list[UUID] = []
    monkeypatch.setattr("prefect.flow_runs.resume_flow_run", resumed.append)
    monkeypatch.setattr("prefect.flow_runs.suspend_flow_run", lambda key: None)
    server = FakeServer()
    monkeypatch.setattr("prefect.client.orchestration.get_client", lambda sync_client: server)
    queue, flow_run = open_queue(job), UUID(int=7)
    assert queue.wanted == 6 and not queue.is_over(time.time()) and queue.is_over(queue.end)
    assert not resume_if_over(queue.folder, queue.end), "no run is suspended"
    suspend(queue, flow_run)
    assert len(server.automations) == 1
    skip = [Label(queue.items[0].id, "b", None, "skip", [0, 1], 1.0)]
    labels = [Label(one.id, "ann", 0, "choice", [0, 1], 1.0) for one in queue.items]
    append_durably(queue.folder / "labels.jsonl", skip + labels[:5])
    assert not resume_if_over(queue.folder, time.time()) and not resumed, "a skip is no label"
    append_durably(queue.folder / "labels.jsonl", labels[5:])
    assert resume_if_over(queue.folder, time.time()) and resumed == [flow_run]
    assert not server.automations, "the deadline is dropped"
    assert not resume_if_over(queue.folder, time.time()), "it is resumed once"

    for over in ("deadline", "closed"):
        (queue.folder / "labels.jsonl").unlink(missing_ok=True)
        suspend(queue, flow_run)
        assert not resume_if_over(queue.folder, time.time())
        if over == "closed":
            close_queue(queue.folder)
        assert resume_if_over(queue.folder, queue.end if over == "deadline" else time.time())
    assert resumed == [flow_run] * 3

    suspend(queue, flow_run)
    monkeypatch.setattr("prefect.flow_runs.resume_flow_run", Mock(side_effect=ConnectionError("away")))
    with pytest.raises(ServiceError, match=str(flow_run)):
        resume_if_over(queue.folder, queue.end)
    monkeypatch.setattr("prefect.flow_runs.resume_flow_run", resumed.append)
    assert resume_if_over(queue.folder, queue.end), "and again when the server is back"

    suspend(queue, flow_run)
    monkeypatch.setattr("prefect.flow_runs.resume_flow_run", Mock(side_effect=NotPausedError("runs")))
    assert resume_if_over(queue.folder, queue.end), "the server resumed it at its deadline"

    for number in (7, 8):  # the first is cancelled on its page while it is suspended
        suspend(queue, UUID(int=number))
    (automation,) = server.automations.values()
    assert automation.owner_resource == f"prefect.flow-run.{UUID(int=8)}"


class FakeServer:
    """Client of a Prefect server that keeps automations and artifacts in memory."""

    def __init__(self) -> None:
        self.automations: dict[UUID, Any] = {}
        self.artifacts: dict[UUID, Any] = {}

    def __enter__(self) -> FakeServer:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def delete_resource_owned_automations(self, owner: str) -> None:
        self.automations = {k: one for k, one in self.automations.items() if one.owner_resource != owner}

    def create_automation(self, one: Any) -> UUID:
        name = uuid4()
        self.automations[name] = one
        return name

    def read_artifacts(self, artifact_filter: Any) -> list[Any]:
        (run,) = artifact_filter.flow_run_id.any_
        return [one for one in self.artifacts.values() if one.flow_run_id == run]

    def create_artifact(self, one: Any) -> None:
        name = uuid4()
        self.artifacts[name] = SimpleNamespace(id=name, flow_run_id=one.flow_run_id, data=one.data)

    def update_artifact(self, name: UUID, one: Any) -> None:
        self.artifacts[name].data = one.data


def test_a_deadline_is_an_automation_that_resumes_the_flow_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """One a flow run: a run that suspends again replaces it."""
    server, runs = FakeServer(), (UUID(int=7), UUID(int=8))
    monkeypatch.setattr("prefect.client.orchestration.get_client", lambda sync_client: server)
    set_deadline(runs[0], time.time() + 3600)
    set_deadline(runs[1], time.time() - 5)
    made, late = server.automations.values()
    assert made.actions[0].type == "resume-flow-run"
    assert made.trigger.match.root == {"prefect.resource.id": f"prefect.flow-run.{runs[0]}"}
    assert made.trigger.after == {"prefect.flow-run.Suspended"}
    assert made.trigger.within.total_seconds() == pytest.approx(3601, abs=5)
    assert late.trigger.within.total_seconds() == 10, "the least"
    set_deadline(runs[0], time.time() + 60)
    assert len(server.automations) == 2
    set_deadline(runs[0], None)
    assert list(server.automations.values()) == [late]
    monkeypatch.setattr("prefect.client.orchestration.get_client", Mock(side_effect=ConnectionError("away")))
    for end in (time.time(), None):
        set_deadline(runs[0], end)  # warns only


def test_the_flow_run_shows_the_address_of_the_page_while_it_is_served(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server, run = FakeServer(), UUID(int=7)
    monkeypatch.setattr("prefect.client.orchestration.get_client", lambda sync_client: server)
    folder = make_queue(tmp_path / "q", [Item("i", [], ["a", "b"])])
    with link_shown(folder, "http://127.0.0.1:8765", "127.0.0.1"):
        assert not server.artifacts, "no run waits for this queue"
    page = {"api": "http://127.0.0.1:4200/api", "flow_run": str(run)}
    (folder / FILE).write_text(json.dumps(page))
    asking = page_of(folder)
    assert asking == RunPage(page["api"], run)
    asking.show(unserved(folder))
    (shown,) = server.artifacts.values()
    assert f"ratchet label {folder}" in shown.data
    with link_shown(folder, "http://127.0.0.1:8765", "127.0.0.1"):
        assert "(http://127.0.0.1:8765)" in shown.data and socket.gethostname() in shown.data
    assert f"ratchet label {folder}" in shown.data
    with link_shown(folder, "http://192.0.2.7:80", "192.0.2.7", team=True):
        assert "account of the team server" in shown.data and "personal links" not in shown.data
    issue(folder, ["ann"])
    with link_shown(folder, "http://192.0.2.7:80", "192.0.2.7"):
        assert "(http://192.0.2.7:80)" in shown.data and "personal links" in shown.data
        close_queue(folder)
    assert "went on" in shown.data and len(server.artifacts) == 1
