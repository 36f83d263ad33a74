"""Resolution of model names: directories, runs, registered versions."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from ratchet.components.errors import RecipeError, StoreError
from ratchet.components.types import Artifact
from ratchet.tasks.registry.registry import register
from ratchet.tasks.registry.weights import weights_of


@pytest.fixture
def model(publish, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    def make(
        stage: str, inputs: dict[str, Artifact] | None = None, architecture: str = "LlamaForCausalLM"
    ) -> Artifact:
        artifact = publish(stage, inputs)
        (artifact.path / "config.json").write_text(json.dumps({"architectures": [architecture]}))
        return artifact

    return make


def test_directory_resolves_to_itself(model, tmp_path: Path) -> None:
    base = model("model_policy")
    assert weights_of(str(base.path), tmp_path) == {base.path.name: base.path}


def test_evaluated_run_opens_the_models_of_its_report(model, publish, run_of, tmp_path: Path) -> None:
    base, data = model("model_policy"), publish("curated", kind="data")
    sft = model("sft", {"policy": base})
    first, final = model("optimise_1", {"policy": sft}), model("optimise_2", {"policy": sft})
    report = publish(
        "evaluate", {"base": base, "initial": sft, "policy": final, "data": data}, kind="report", results={}
    )
    run_of(
        "whole", model_policy=base, curated=data, sft=sft, optimise_1=first, optimise_2=final, evaluate=report
    )
    expected = {"base": base.path, "SFT": sft.path, "final": final.path}
    assert weights_of("whole", tmp_path) == expected == weights_of(str(tmp_path / "runs" / "whole"), tmp_path)
    assert list(weights_of("whole", tmp_path)) == ["base", "SFT", "final"]


@pytest.mark.parametrize(
    ("initial", "policy", "titles"),
    [
        ("model_policy", "sft", ["base", "final"]),
        ("sft", "sft", ["base", "final"]),
        ("model_policy", "model_policy", ["base"]),
    ],
)
def test_each_model_of_a_run_opens_once(
    initial: str, policy: str, titles: list[str], model, publish, run_of, tmp_path: Path
) -> None:
    artifacts = {"model_policy": model("model_policy")}
    artifacts["sft"] = model("sft", {"policy": artifacts["model_policy"]})
    report = publish(
        "evaluate",
        {"base": artifacts["model_policy"], "initial": artifacts[initial], "policy": artifacts[policy]},
        kind="report",
        results={},
    )
    run_of("short", **artifacts, evaluate=report)
    assert list(weights_of("short", tmp_path)) == titles


def test_unevaluated_run_opens_its_finished_models(model, run_of, tmp_path: Path) -> None:
    base = model("model_policy")
    run_of("begun", model_policy=base)
    assert weights_of("begun", tmp_path) == {"base": base.path}
    run_of("empty")
    with pytest.raises(RecipeError, match="empty"):
        weights_of("empty", tmp_path)


def test_registered_version_is_in_the_store_and_afterwards_in_the_registry(model, tmp_path: Path) -> None:
    artifact = model("sft")
    version = register(artifact.path, "policy", lineage={"data": {}}, home=tmp_path)
    assert (
        weights_of("policy", tmp_path)
        == weights_of(f"policy:{version}", tmp_path)
        == {"policy:1": artifact.path}
    )
    text = (artifact.path / "model.safetensors").read_text()
    shutil.rmtree(artifact.path)
    assert (weights_of("policy", tmp_path)["policy:1"] / "model.safetensors").read_text() == text


def test_external_version_without_files_is_an_error_with_the_command(model, tmp_path: Path) -> None:
    artifact = model("sft")
    register(artifact.path, "policy", lineage={"data": {}}, external=True, home=tmp_path)
    shutil.rmtree(artifact.path)
    with pytest.raises(StoreError, match="ratchet reproduce policy:1"):
        weights_of("policy", tmp_path)


def test_other_models_are_refused_by_kind(model, publish, run_of, tmp_path: Path) -> None:
    run_of("chat-1")
    for name, message in (
        (str(model("reward", architecture="LlamaForSequenceClassification").path), "is a reward model"),
        (str(publish("curated", kind="data").path), "its stage made data"),
        ("chat-2", "did you mean 'chat-1'"),
    ):
        with pytest.raises(RecipeError, match=message):
            weights_of(name, tmp_path)
