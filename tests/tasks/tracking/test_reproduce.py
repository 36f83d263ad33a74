"""Reproduction of a tiny run: identical, and the first differing stage if the record was changed."""

from __future__ import annotations

import copy
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from ratchet.components.errors import RecipeError
from ratchet.components.recipes.plan import plan
from ratchet.components.recipes.recipe import dump, load, names, reread
from ratchet.tasks.data.versioning import commit, dvc, publish
from ratchet.tasks.pipeline import Pipeline
from ratchet.tasks.registry.lineage import write_lineage
from ratchet.tasks.tracking import reproduce as tracking_reproduce
from ratchet.tasks.tracking.reproduce import reproduce, surroundings


@pytest.mark.parametrize("name", names())
def test_dumped_recipe_has_the_same_plan(name: str) -> None:
    recipe, profile = load(name, profile="test")
    again = reread(dump(recipe, profile))
    assert {n: s.key for n, s in plan(*again).items()} == {n: s.key for n, s in plan(recipe, profile).items()}


def test_a_recipe_that_was_not_dumped_is_refused() -> None:
    with pytest.raises(RecipeError, match="resolved recipe"):
        reread("schema: 1\n")


def test_reproduction_is_identical_and_detects_tampering(tiny_home: Path, tmp_path: Path) -> None:
    pipeline = Pipeline.open(
        "sft", home=tiny_home, profile="test", overrides=["sft.limit=32", "evaluate=null", "register=null"]
    )
    pipeline.begin()
    for name in pipeline.stages:
        pipeline.make(name)
    recorded = write_lineage(pipeline, "sft")
    assert surroundings(recorded) == []

    same = list(reproduce(recorded, tmp_path / "fresh", home=tiny_home))
    assert {o.stage: o.state for o in same} == {
        "model_policy": "brought",
        "raw": "brought",
        "drafts": "identical",
        "curated": "identical",
        "sft": "identical",
    }
    assert not any(o.changed for o in same)

    tampered = copy.deepcopy(recorded)
    tampered["stages"]["drafts"]["content"] = "0" * 64
    found = list(reproduce(tampered, tmp_path / "second", home=tiny_home))
    assert [o.state for o in found] == ["brought", "brought", "differs"] and found[-1].stage == "drafts"

    tampered = copy.deepcopy(recorded)
    tampered["resolved"] = tampered["resolved"].replace("limit: 32", "limit: 16")
    found = list(reproduce(tampered, tmp_path / "third", home=tiny_home))
    assert found[-1].stage == "sft" and found[-1].state == "differs" and found[-1].changed
    assert found[-1].files == ("model.safetensors",)
    with pytest.raises(RecipeError, match="not empty"):
        next(reproduce(recorded, tmp_path / "third", home=tiny_home))


def test_a_place_that_cannot_be_read_is_not_the_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next place is tried, instead of ending the reproduction."""
    (tmp_path / "a.txt").write_text("a")
    assert tracking_reproduce._digest(tmp_path)

    def broken(file: Path) -> str:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(tracking_reproduce, "file_digest", broken)
    assert tracking_reproduce._digest(tmp_path) == ""


def test_missing_inputs_are_downloaded(tiny_home: Path, tmp_path: Path) -> None:
    pipeline = Pipeline.open("sft", home=tiny_home, profile="test")
    pipeline.begin()
    pipeline.make("raw")
    recorded = write_lineage(pipeline, "raw")
    (outcome,) = reproduce(recorded, tmp_path / "fresh", home=tmp_path / "nowhere")
    assert outcome.state == "identical"


def test_changed_data_is_restored_from_the_dvc_remote(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The source is overwritten, the store is gone, data/ holds the next version: git and DVC still know the
    one that was used.
    """
    monkeypatch.chdir(workspace)
    source, recorded = tmp_path / "chats.jsonl", {}
    for version in ("first", "second"):
        home = tmp_path / version
        source.write_text(json.dumps({"prompt": version, "completion": "yes", "label": True}))
        pipeline = Pipeline.open("sft", home=home, profile="test", overrides=[f"data.source=path:{source}"])
        pipeline.begin()
        publish(pipeline.make("raw").path, workspace / "data" / "raw")
        (workspace / "data" / "one.txt").write_text(version)
        (workspace / "metrics.json").write_text("{}")
        commit(workspace)
        dvc(workspace, "push")
        for arguments in (("add", "-A"), ("commit", "-qm", version)):
            subprocess.run(["git", *arguments], check=True)
        recorded[version] = write_lineage(pipeline, "raw")
        shutil.rmtree(home)
    source.unlink()
    shutil.rmtree(workspace / ".dvc" / "cache")
    (outcome,) = reproduce(recorded["second"], tmp_path / "latest", home=tmp_path / "second")
    assert outcome.state == "brought", "by its bytes: data/ holds no manifest"
    (outcome,) = reproduce(recorded["first"], tmp_path / "again", home=tmp_path / "first")
    assert outcome.state == "brought" and not list((tmp_path / "again").glob(".brought-*"))
