"""`ratchet export`: exact files, a model card with provenance, no local paths."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from ratchet.components.errors import RecipeError, StoreError
from ratchet.components.storage.run_directory import RunDirectory
from ratchet.components.storage.store import Store, digest
from ratchet.components.types import Artifact
from ratchet.tasks.registry.exporting import export
from ratchet.tasks.registry.registry import promote, register

RESULTS = {
    "metrics": {
        "verified.mean": 0.36,
        "verified.low": 0.304,
        "verified.high": 0.416,
        "verified.n": 256,
        "final.length": 14.0,
    },
    "verdict": {
        "passed": True,
        "gates": {"verified": True},
        "reasons": ["verified: passed, the low end of its interval 0.304 is over 0.2"],
    },
}
FILES = {
    "config.json": json.dumps({"architectures": ["LlamaForCausalLM"]}),
    "tokenizer.json": "{}",
    "model.safetensors": "weights" * 100,
}


def product(
    store: Store, stage: str, kind: str, files: dict[str, str], inputs: dict[str, Artifact], **meta: Any
) -> Artifact:
    key = digest([stage, files])
    with store.working(stage, key) as work:
        for name, text in files.items():
            (work.product / name).write_text(text)
        work.metrics.write_text("{}")
        return store.publish(
            work,
            stage,
            key,
            kind,
            [a.digest for a in inputs.values()],
            meta,
            {
                "does": stage,
                "options": {},
                "inputs": {role: a.path.name.rpartition("-")[0] for role, a in inputs.items()},
                "revision": "abc123",
                "packages": {"torch": "2.13"},
                "machine": "here",
            },
        )


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with the finished run `mine`: a base model from the hub, raw data from a local file, SFT weights
    and their evaluation.
    """
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    home, run = tmp_path / "home", RunDirectory(tmp_path / "home", "mine")
    store = Store(home)
    base = product(
        store,
        "model_policy",
        "weights",
        {**FILES, "model.safetensors": "base"},
        {},
        source="hub:org/base@" + "a" * 40,
    )
    raw = product(store, "raw", "data", {"rows.jsonl": "{}"}, {}, source=f"path:{tmp_path}/secret/rows.jsonl")
    sft = product(store, "sft", "weights", FILES, {"policy": base, "data": raw})
    report = product(store, "evaluate", "report", {"results.json": json.dumps(RESULTS)}, {"policy": sft})
    run.open("recipe: {about: Answers that a program can check.}\n")
    for name, made in {"model_policy": base, "raw": raw, "sft": sft, "evaluate": report}.items():
        run.link(name, made.path)
    run.record(recipe="instruct", state="finished", started=0.0)
    return home


def files_of(folder: Path) -> dict[str, str]:
    return {p.name: p.read_text() for p in folder.iterdir() if p.name != "README.md"}


@pytest.mark.parametrize("model", ["mine/sft", "mine", "runs/mine/stages/sft"])
def test_export_writes_the_model_files_and_a_model_card(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: str
) -> None:
    monkeypatch.chdir(home)
    card = (export(model, tmp_path / "out", home=home) / "README.md").read_text()
    assert files_of(tmp_path / "out") == FILES
    head = yaml.safe_load(card.split("---")[1])
    assert head["base_model"] == "org/base" and (head["library_name"], head["pipeline_tag"]) == (
        "transformers",
        "text-generation",
    )
    for told in (
        "recipe `instruct`",
        "Answers that a program can check.",
        "gates of its recipe **passed**",
        RESULTS["verdict"]["reasons"][0],
        "| verified | 0.36 | [0.304, 0.416] |",
        "| final.length | 14 |  |",
        "| raw | data | a local file |",
        "hub:org/base@aaaa",
        "`abc123`",
        "torch 2.13",
    ):
        assert told in card, told
    assert str(tmp_path) not in card and "verified.low" not in card


def test_export_of_a_registered_version_omits_mlflow_files(home: Path, tmp_path: Path) -> None:
    (path,) = (home / "store").glob("sft-*")
    lineage = {
        "product": "sft",
        "recipe": "instruct",
        "run": "mine",
        "revision": "abc",
        "packages": {},
        "resolved": "",
        "results": {},
        "stages": {"sft": {"kind": "weights", "content": "c" * 64, "meta": {}}},
        "data": {},
    }
    promote("mine", register(path, "mine", lineage=lineage, home=home), {"passed": True}, home=home)
    path.rename(tmp_path / "gone")
    card = (export("mine@champion", tmp_path / "out", home=home) / "README.md").read_text()
    assert files_of(tmp_path / "out") == FILES and "# mine:1" in card and "`cccccccccccccccc`" in card


def test_export_accepts_any_model_directory_and_refuses_others(home: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    for name, text in {**FILES, "README.md": "another's card", "pytorch_model.bin": "pickle"}.items():
        (plain / name).write_text(text)
    assert (
        "# plain" in (export(str(plain), tmp_path / "out", home=home) / "README.md").read_text()
        and files_of(tmp_path / "out") == FILES
    )
    for model, out, error in (
        (str(plain), tmp_path / "out", "is not an empty directory"),
        ("mine/stf", tmp_path / "new", "no stage 'stf'; did you mean 'sft'"),
        ("mine/raw", tmp_path / "new", "config.json"),
        ("other", tmp_path / "new", "neither a "),
    ):
        with pytest.raises(RecipeError, match=error):
            export(model, out, home=home)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["home", "out", "plain"], (
        "an export that failed left something"
    )


def test_a_damaged_product_is_not_exported(home: Path, tmp_path: Path) -> None:
    (weights,) = (home / "store").glob("sft-*/model.safetensors")
    weights.chmod(0o644)
    weights.write_text("other")
    with pytest.raises(StoreError, match=r"model\.safetensors"):
        export("mine/sft", tmp_path / "out", home=home)
    assert not (tmp_path / "out").exists()
