"""Lineage from manifests: every ancestor once, missing ones named, complete SVG."""

from __future__ import annotations

import json
import shutil
import xml.etree.ElementTree as ET

import pytest
from typer.testing import CliRunner

from ratchet.components.errors import RecipeError, StoreError
from ratchet.components.storage.store import Store
from ratchet.flows.cli import app
from ratchet.flows.commands.lineage import draw
from ratchet.tasks.registry.lineage import of_product, resolve
from ratchet.tasks.registry.registry import promote, register
from ratchet.tasks.registry.versions import fallback


@pytest.fixture
def chain(publish, run_of):
    base = publish("model_policy")
    data = publish("curated", {"policy": base}, kind="data")
    sft = publish("sft", {"policy": base, "data": data}, steps=3)
    evaluated = publish(
        "evaluate",
        {"base": base, "policy": sft, "data": data},
        kind="report",
        results={"metrics": {"win_rate": 0.6}},
    )
    run_of("one", model_policy=base, curated=data, sft=sft, evaluate=evaluated)
    return base, data, sft


def test_lineage_lists_every_ancestor_with_its_provenance(chain, tmp_path):
    base, _, sft = chain
    lineage, version = resolve(str(tmp_path / "runs" / "one" / "stages" / "sft"), tmp_path)
    assert resolve("one/sft", tmp_path) == (lineage, version)
    assert version is None and list(lineage["stages"]) == ["model_policy", "curated", "sft"]
    assert lineage["stages"]["sft"]["inputs"] == {"policy": "model_policy", "data": "curated"}
    assert lineage["stages"]["sft"]["key"] == sft.digest and lineage["stages"]["sft"]["meta"]["steps"] == 3
    assert (lineage["product"], lineage["run"], lineage["recipe"], lineage["revision"]) == (
        "sft",
        "one",
        "fake",
        "abc",
    )
    assert (
        lineage["packages"] == {"torch": "2"}
        and lineage["resolved"] == "recipe: {}\n"
        and lineage["results"]["metrics"] == {"win_rate": 0.6}
    )
    assert set(lineage["data"]) == {"curated"} and set(lineage["weights"]) == {"model_policy", "sft"}
    assert of_product(base.path)["results"] == {}  # the evaluation was of another


@pytest.mark.parametrize(("model", "scores"), [("policy", {"gold": [1.0]}), ("base", {})])
def test_scores_of_another_arm_are_not_those_of_the_policy(model, scores, publish, run_of, tmp_path):
    base, store = publish("model_policy"), Store(tmp_path)
    sft = publish("sft", {"policy": base})
    arms = {
        name: {"model": one, "data": "evaluate", "rollout": {"name": "sample"}, "best_of": None}
        for name, one in (("trained", "policy"), ("last", model))
    }
    made_with = {"options": {"arms": arms}, "inputs": {"base": "model_policy", "policy": "sft"}}
    found = {"metrics": {"trained.gold": 2.0}, "per_prompt": {"final.gold": [1.0], "trained.gold": [2.0]}}
    with store.working("evaluate", "e" * 64) as work:
        (work.product / "results.json").write_text(json.dumps(found))
        keys = [base.digest, sft.digest]
        evaluated = store.publish(work, "evaluate", "e" * 64, "report", keys, {}, made_with)
    run_of("one", sft=sft, evaluate=evaluated)
    results = of_product(sft.path)["results"]
    assert results["per_prompt"] == scores and results["metrics"] == {"trained.gold": 2.0}
    assert not {"policy", "answered_by"} & results.keys()


def test_content_digest_ignores_timestamps(publish, tmp_path):
    first = of_product(publish("sft", steps=3).path)
    shutil.rmtree(tmp_path / "store")
    assert (
        of_product(publish("sft", steps=4).path)["stages"]["sft"]["content"]
        == first["stages"]["sft"]["content"]
    )
    shutil.rmtree(tmp_path / "store")
    assert (
        of_product(publish("sft", text="other").path)["stages"]["sft"]["content"]
        != first["stages"]["sft"]["content"]
    )


def test_missing_ancestor_is_marked(chain, tmp_path):
    _, data, sft = chain
    shutil.rmtree(data.path)
    lineage = of_product(sft.path)
    assert lineage["stages"]["curated"] == {"key": data.digest, "missing": True, "inputs": {}}
    lineage["stages"]["sft"]["meta"]["headline"] = "a <note>"
    text = " ".join(
        "".join(ET.parse(draw(lineage, tmp_path / "l.svg", "policy 1")).getroot().itertext()).split()
    )
    assert (
        all(name in text for name in lineage["stages"])
        and "no longer in the store" in text
        and "a <note>" in text
    )
    shutil.rmtree(sft.path)
    with pytest.raises(StoreError, match="finished"):
        of_product(sft.path)


def test_registered_version_has_its_lineage_without_the_store(chain, tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    recorded = of_product(chain[2].path)
    version = register(chain[2].path, "policy", lineage=recorded, home=tmp_path)
    promote("policy", version, {"passed": True}, home=tmp_path)
    shutil.rmtree(tmp_path / "store")
    for name in ("policy", "policy:1", "policy@champion"):
        found, which = resolve(name, tmp_path)
        assert found == recorded and which is not None and which.version == version
    for name, message in (
        ("polic", "registered model"),
        ("policy:7", "no version 7"),
        ("policy@champ", "@champion"),
        ("runs/one/stages/stf", "nor a directory, nor a registered model"),
    ):
        with pytest.raises(RecipeError, match=message):
            resolve(name, tmp_path)


def test_a_name_without_champion_says_which_version_was_taken(chain, tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    recorded = of_product(chain[2].path)
    for _ in range(2):
        newest = register(chain[2].path, "policy", lineage=recorded, home=tmp_path)
    note = f"policy has no champion: this is version {newest}, the newest"
    assert fallback("policy", resolve("policy", tmp_path)[1]) == note
    shown = CliRunner().invoke(app, ["lineage", "policy", "--home", str(tmp_path)], catch_exceptions=False)
    assert f"policy version {newest}" in shown.output and note in shown.output
    assert fallback("policy:1", resolve("policy:1", tmp_path)[1]) == ""
    promote("policy", "1", {"passed": True}, home=tmp_path)
    found = resolve("policy", tmp_path)[1]
    assert found is not None and found.version == "1" and fallback("policy", found) == ""
