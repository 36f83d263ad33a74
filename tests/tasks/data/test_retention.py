"""`ratchet gc`: deletes unneeded artifacts only, also while other processes run."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ratchet.components.errors import RecipeError, StoreError
from ratchet.components.storage.run_directory import RunDirectory
from ratchet.components.storage.store import Store
from ratchet.tasks.data.retention import Policy, survey, sweep
from ratchet.tasks.labels.waiting import queue_of
from ratchet.tasks.registry.lineage import of_product
from ratchet.tasks.registry.registry import promote, register

ROOT = Path(__file__).resolve().parents[3]
NOTHING = Policy(keep_days=0, keep_last=0)
HOLD = """
import sys
from pathlib import Path
from ratchet.components.storage.run_directory import RunDirectory
from ratchet.components.storage.store import Store
run = RunDirectory(Path(sys.argv[1]), "living")
run.hold()
with Store(Path(sys.argv[1])).working("sft", "a" * 64) as work:
    (work.progress / "checkpoint").write_text("half")
    print("holding", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def no_server(monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def went(found):
    return {entry.path.name.rpartition("-")[0] or entry.path.name for entry in found.go}


def age(run: RunDirectory, days: float) -> None:
    then = time.time() - days * 86400
    for path in (p for p in (run.path / "run.json", run.path / "stages", run.path) if p.exists()):
        os.utime(path, (then, then))


def test_recent_runs_keep_their_artifacts_and_old_runs_do_not(publish, run_of, tmp_path):
    base = publish("model_policy")
    old, new = publish("sft", {"policy": base}, text="old"), publish("sft", {"policy": base}, text="new")
    age(run_of("before", model_policy=base, sft=old), 30)
    age(run_of("lately", sft=new), 2)
    assert not survey(tmp_path, Policy()).go, "the last five runs stay, however old"
    found = survey(tmp_path, Policy(keep_last=1))
    assert [e.path for e in found.go] == [old.path] and found.go[0].size > 0 and old.path.exists()
    assert found.stay == {"recent": 2}, "an ancestor stays with its product"
    assert went(survey(tmp_path, Policy(keep_last=0, keep_days=1))) == {"sft", "model_policy"}

    assert [e.path for e in sweep(tmp_path, Policy(keep_last=1)).go] == [old.path]
    assert (
        not old.path.exists()
        and new.path.exists()
        and base.path.exists()
        and not list((tmp_path / "store").glob(".trash*"))
    )
    assert (tmp_path / "runs" / "before" / "run.json").exists(), "a run keeps its record"


def test_gc_deletes_only_store_directories(publish, tmp_path):
    publish("sft")
    store = tmp_path / "store"
    (store / "notes").mkdir()
    (store / "sft-0123456789abcdef").mkdir()  # no manifest: not a product
    (store / "file").write_text("x")
    outside = tmp_path / "outside"
    outside.mkdir()
    (store / "linked-0123456789abcdef").symlink_to(outside)
    (store / ".replaced-sft-0123456789abcdef-17").mkdir()
    for number in (17, os.getpid()):  # of gcs that were killed, one with this process id
        (store / f".trash-{number}" / "0-sft-0123456789abcdef").mkdir(parents=True)
    sweep(tmp_path, NOTHING)
    left = {p.name for p in store.iterdir() if not p.name.startswith(".")}
    assert left == {"notes", "sft-0123456789abcdef", "file", "linked-0123456789abcdef"} and outside.exists()
    assert not [p for p in store.iterdir() if p.name.startswith((".replaced", ".trash"))]


def test_gc_frees_space_on_a_full_disk(publish, tmp_path, monkeypatch):
    """A directory takes a block, of which there is none."""
    old = publish("sft")
    (tmp_path / "store" / ".work" / "reward-0123456789abcdef" / "progress").mkdir(parents=True)

    def full(path: str, mode: int = 0o777) -> None:
        raise OSError(errno.EEXIST if os.path.exists(path) else errno.ENOSPC, "full")

    monkeypatch.setattr(os, "mkdir", full)
    assert len(sweep(tmp_path, NOTHING).go) == 2 and not old.path.exists()
    left = [path for path in (tmp_path / "store").rglob("*") if path.is_dir()]
    assert [path.name for path in left] == [".work"]


def test_gc_keeps_artifacts_of_running_runs(publish, run_of, tmp_path):
    used, other = publish("curated", kind="data"), publish("gold")
    age(run_of("living", curated=used), 100)
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)],
        cwd=ROOT,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    work = tmp_path / "store" / ".work" / ("sft-" + "a" * 16)
    try:
        assert child.stdout is not None and child.stdout.readline() == "holding\n"
        assert went(sweep(tmp_path, NOTHING)) == {"gold"}
        assert used.path.exists() and not other.path.exists() and (work / "progress" / "checkpoint").exists()
    finally:
        child.kill()
        child.wait()
    assert went(sweep(tmp_path, NOTHING)) == {"curated", "sft"}  # dead now: its product and its work
    assert not work.exists()


def test_gc_keeps_labels_that_people_give(run_of, tmp_path):
    run = run_of("asks", state="waiting")
    run.record(stages={"ask_1": "b" * 64})
    queue = queue_of(tmp_path, "ask_1", "b" * 64)
    queue.mkdir(parents=True)
    (queue / "labels.jsonl").write_text("{}\n")
    os.utime(queue / "labels.jsonl", (0, 0))
    age(run, 90)
    assert not survey(tmp_path, NOTHING).go, "suspended until people have labelled, however long it takes"
    run.record(state="running")  # killed while people go on
    age(run, 90)
    os.utime(queue / "labels.jsonl")
    assert not survey(tmp_path, Policy(keep_last=0)).go
    os.utime(queue / "labels.jsonl", (0, 0))
    assert went(survey(tmp_path, Policy(keep_last=0))) == {"ask_1"}


def test_gc_keeps_progress_of_recent_interrupted_runs(publish, run_of, tmp_path):
    run = run_of("killed", state="running")
    run.record(stages={"sft": "a" * 64})
    with Store(tmp_path).working("sft", "a" * 64) as work:
        (work.progress / "checkpoint").write_text("half")
    assert not sweep(tmp_path, Policy()).go and (work.progress / "checkpoint").exists()
    age(run, 20)
    assert went(sweep(tmp_path, Policy(keep_last=0))) == {"sft"}


def test_gc_does_not_race_with_a_run_that_links_an_artifact(publish, tmp_path):
    sft = publish("sft")
    code = (
        "import sys; from pathlib import Path; from ratchet.tasks.data.retention import *; "
        "sweep(Path(sys.argv[1]), Policy(0, 0))"
    )
    with Store(tmp_path).steady():
        child = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT)
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(4)
        run = RunDirectory(tmp_path, "late")
        run.hold()
        run.link("sft", sft.path)
    assert child.wait(60) == 0 and sft.path.exists()


def test_promoted_versions_keep_their_whole_run_and_the_best_their_ancestors(publish, run_of, tmp_path):
    base = publish("model_policy")
    versions = []
    for number, win_rate in enumerate((0.9, 0.5, 0.7)):
        sft = publish("sft", {"policy": base}, text=str(number))
        report = publish(
            "evaluate", {"policy": sft}, kind="report", results={"metrics": {"win_rate": win_rate}}
        )
        run = run_of(f"run{number}", sft=sft, evaluate=report)
        version = register(
            sft.path, "policy", lineage=of_product(sft.path), metrics={"win_rate": win_rate}, home=tmp_path
        )
        run.record(versions={"sft": version})
        age(run, 50)
        versions.append((sft, report))
    promote("policy", "2", {"passed": True, "reasons": ["first"]}, home=tmp_path)
    promote(
        "policy", "3", {"passed": False, "reasons": ["gates"]}, home=tmp_path
    )  # candidate moves on; 2 stays champion
    assert went(survey(tmp_path, NOTHING)) == {"evaluate"}, "without --best every registered version stays"
    assert [e.path for e in survey(tmp_path, NOTHING).go] == [versions[0][1].path]
    best = Policy(0, 0, best=1, metric="win_rate")
    assert survey(tmp_path, best).stay == {"champion or candidate": 5, "registered": 1}
    with pytest.raises(RecipeError, match="'win_rate'"):
        survey(tmp_path, Policy(0, 0, best=1, metric="win_rat"))
    os.rename(tmp_path / "mlflow.db", tmp_path / "elsewhere.db")
    with pytest.raises(StoreError, match="set MLFLOW_TRACKING_URI"):
        sweep(tmp_path, NOTHING)


def test_gc_keeps_registered_versions_of_a_home_that_was_renamed(publish, run_of, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'team.db'}")
    home, renamed = tmp_path / "before", tmp_path / "after"
    for number, folder in enumerate((home, renamed)):
        with Store(folder).working("sft", str(number) * 64) as work:
            (work.product / "weights").write_text(str(number))
            made = Store(folder).publish(work, "sft", str(number) * 64, "weights", (), {})
        register(made.path, "policy", lineage={"data": {}}, external=True, home=folder)
        if folder == home:
            home.rename(renamed)
    assert not survey(renamed, NOTHING).go


def test_gc_keeps_versions_without_the_ranking_metric(publish, run_of, tmp_path):
    base = publish("model_policy")
    for name, metrics in (("policy", {"win_rate": 0.9}), ("reward_model", {"accuracy": 0.6})):
        for number in range(2):
            product = publish(name, {"policy": base}, text=str(number))
            run = run_of(f"{name}{number}", **{name: product})
            run.record(
                versions={
                    name: register(
                        product.path, name, lineage=of_product(product.path), metrics=metrics, home=tmp_path
                    )
                }
            )
            age(run, 50)
    assert went(survey(tmp_path, Policy(0, 0, best=1, metric="win_rate"))) == {"policy"}
    assert survey(tmp_path, Policy(0, 0, best=1, metric="win_rate")).stay == {"registered": 4}, (
        "one policy, both reward models, what they began as"
    )


def test_hard_linked_file_counts_as_zero_bytes_freed(publish, tmp_path):
    sft = publish("sft", text="x" * 5000)
    before = survey(tmp_path, NOTHING).freed
    os.link(sft.path / "model.safetensors", tmp_path / "published")
    assert survey(tmp_path, NOTHING).freed == before - 5000
