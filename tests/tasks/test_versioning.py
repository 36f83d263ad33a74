"""DVC for real: a git repository with a local remote, in a temporary folder."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from components.errors import ServiceError, StoreError
from tasks import versioning
from tasks.versioning import commit, digest, dvc, locked, publish, push

ROOT = Path(__file__).resolve().parents[2]
PIPELINE = {"stages": {
    "train": {"cmd": f"{sys.executable} -c 'raise SystemExit(3)'", "deps": ["recipe.yaml"], "params": [{"recipe.yaml": None}],
              "outs": ["data/raw", "data/one.txt"], "metrics": [{"metrics.json": {"cache": False}}]}}}


def git(where, *arguments):
    subprocess.run(["git", "-C", where, "-c", "user.name=t", "-c", "user.email=t@t", *arguments], check=True, capture_output=True)


@pytest.fixture
def workspace(tmp_path):
    where = tmp_path / "work"
    where.mkdir()
    git(where, "init", "-q")
    shutil.copytree(ROOT / ".dvc", where / ".dvc", ignore=shutil.ignore_patterns("tmp", "cache", "config.local"))
    dvc(where, "remote", "add", "-d", "here", str(tmp_path / "remote"))
    (where / "dvc.yaml").write_text(yaml.safe_dump(PIPELINE))
    (where / "recipe.yaml").write_text("beta: 0.1\n")
    return where


def made(folder, text):
    (folder / "deep").mkdir(parents=True)
    (folder / "a.txt").write_text(text)
    (folder / "deep" / "b.txt").write_text("b")
    return folder


def test_publish_commit_push_and_back_again(workspace, tmp_path):
    publish(made(tmp_path / "v1", "first"), workspace / "data" / "raw")
    publish(tmp_path / "v1" / "a.txt", workspace / "data" / "one.txt")
    (workspace / "metrics.json").write_text(json.dumps({"win_rate": 0.5}))
    outs = commit(workspace)
    assert outs["data/raw"] == digest(workspace / "data" / "raw")
    assert outs["data/one.txt"] == digest(tmp_path / "v1" / "a.txt")
    assert "up to date" in dvc(workspace, "status")  # as true as after `dvc repro`,
    assert "up to date" in dvc(workspace, "repro")  # whose command would fail if it ran
    assert push(workspace)
    git(workspace, "add", "-A")
    git(workspace, "commit", "-qm", "one")

    publish(made(tmp_path / "v2", "second"), workspace / "data" / "raw")
    (workspace / "metrics.json").write_text(json.dumps({"win_rate": 0.75}))
    assert commit(workspace)["data/raw"] != outs["data/raw"]
    difference = json.loads(dvc(workspace, "metrics", "diff", "--json"))["metrics.json"]["win_rate"]
    assert difference["diff"] == pytest.approx(0.25)

    git(workspace, "checkout", "-q", "HEAD", "--", "dvc.lock", "metrics.json")
    shutil.rmtree(workspace / ".dvc" / "cache")
    dvc(workspace, "pull", "--force")
    assert (workspace / "data" / "raw" / "a.txt").read_text() == "first"
    assert locked(workspace) == outs


def test_publish_replaces_and_never_writes_through_a_link(tmp_path):
    target, cache = tmp_path / "data", tmp_path / "cache"
    publish(made(tmp_path / "v1", "first"), target)
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


def test_without_a_workspace_it_skips_and_says_so(tmp_path, caplog):
    caplog.set_level("INFO", logger="ratchet.versioning")
    assert commit(tmp_path) == {} and not push(tmp_path)
    assert "has no .dvc" in caplog.text


def test_a_busy_workspace_is_waited_for_then_an_error(workspace):
    held = (
        "import sys, time, zc.lockfile\n"
        "lock = zc.lockfile.LockFile(sys.argv[1]); print('held', flush=True); time.sleep(60)\n"
    )
    (workspace / ".dvc" / "tmp").mkdir(exist_ok=True)
    holder = subprocess.Popen([sys.executable, "-c", held, workspace / ".dvc" / "tmp" / "lock"], stdout=subprocess.PIPE)
    try:
        holder.stdout.readline()
        with pytest.raises(ServiceError, match="another DVC command"):
            dvc(workspace, "commit", "--force", wait_seconds=0.1)
    finally:
        holder.kill()
        holder.wait()


def test_the_repository_pipeline_has_the_promised_stages():
    stages = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]
    assert list(stages) == ["fetch", "curate", "train", "evaluate"]
    assert versioning._stages(ROOT)["curate"] == ["data/curated", "data/quarantined"]
    known: set[str] = set()
    for name, stage in stages.items():
        assert stage["cmd"] == f"ratchet stage {name} chat"
        assert {d for d in stage.get("deps", []) if d.startswith("data/")} <= known
        known |= set(stage.get("outs", []))
