"""Output of a reward stage: a directory that transformers loads, a certificate, deterministic plots."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification, AutoTokenizer

from ratchet.components.data.groups import by_prompt, write_groups
from ratchet.components.evaluation import plots
from ratchet.components.stages import gold as stage
from ratchet.components.stages import reward
from ratchet.components.stages.job import Job
from ratchet.components.storage.store import Workspace
from ratchet.components.types import Artifact, Group, Prompt, Trajectory
from ratchet.tasks.pipeline import Pipeline

PICTURES = {"calibration.png", "length_bias.png"}


@pytest.mark.parametrize(
    ("pool", "auto"),
    [("last", AutoModelForSequenceClassification), ("mean", AutoModelForTokenClassification)],
)
def test_a_reward_model_is_published_with_its_certificate_and_pictures(
    pool: str, auto: type, tiny_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: dict[str, Any] = {}
    certify = reward.certify
    monkeypatch.setattr(reward, "certify", lambda **options: given.update(options) or certify(**options))
    pipeline = Pipeline.open(
        "reward_model",
        home=tiny_home,
        profile="test",
        overrides=[
            f"reward.pool={pool}",
            "reward.limit=46",  # no other test's, whose product the stage would reuse without certifying
            "reward.limit_validation=24",
            "reward.certificate.min_accuracy=null",
        ],
    )
    for name in pipeline.stages:
        artifact = pipeline.make(name)
    certificate = json.loads((artifact.path / "certificate.json").read_text())
    assert (
        certificate == artifact.meta["certificate"]
        and certificate["passed"]
        and len(certificate["notes"]) == 1
        and "accuracy was not required" in certificate["notes"][0]
    )
    assert len(given["prompts"]) == len(given["scores"]) == certificate["pairs"], "of each pair"
    assert certificate["padding_side"] == "right" and set(certificate["padding_difference"]) == {
        "left",
        "right",
    }
    assert max(certificate["padding_difference"].values()) < 1e-4
    assert {p.name for p in (artifact.path / "plots").iterdir()} == PICTURES
    for name, again in plots.certificate(certificate, tmp_path).items():
        assert again.read_bytes() == (artifact.path / "plots" / f"{name}.png").read_bytes()
    model, loading = auto.from_pretrained(artifact.path, output_loading_info=True)
    assert not any(loading.values())
    batch = AutoTokenizer.from_pretrained(artifact.path)(
        ["hello", "how are you today?"], padding=True, return_tensors="pt"
    )
    with torch.no_grad():
        assert model(**batch).logits.isfinite().all()


def test_grouping_pairs_by_prompt_keeps_the_pairs() -> None:
    pairs = [
        Group(
            Prompt(name, ({"role": "user", "content": name},)),
            tuple(Trajectory(({"role": "assistant", "content": text},)) for text in texts),
            {"margin": [1.0, 1.0], **more},
        )
        for name, texts, more in [
            ("a", "xy", {}),
            ("b", "zw", {"other": [1, 2]}),
            ("a", "xw", {"other": [3, 4]}),
        ]
    ]
    first, second = by_prompt(pairs)
    assert [t.text for t in first.trajectories] == ["x", "y", "x", "w"] and dict(first.columns) == {
        "margin": [1.0] * 4
    }
    assert second == pairs[1]
    assert [first.take([i, i + 1]).trajectories for i in (0, 2)] == [
        pairs[0].trajectories,
        pairs[2].trajectories,
    ]


def test_gold_measure_certificate_is_plotted_deterministically(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = {
        "reliability": [{"confidence": 0.6, "accuracy": 0.5, "pairs": 4}],
        "calibration_error": 0.1,
        "accuracy": {"mean": 0.5, "low": 0.2, "high": 0.8},
        "length": {
            "controlled": {"mean": 0.5, "low": 0.2, "high": 0.8},
            "matched": None,
            "longer_preferred": {"mean": 0.7, "low": 0.4, "high": 0.9},
        },
    }
    monkeypatch.setattr(stage, "train_gold", lambda *_: certificate)
    pair = Group(
        Prompt("p", ()), tuple(Trajectory(({"role": "assistant", "content": text},)) for text in "ab")
    )
    for name in ("gold", "gold_validation"):
        write_groups(tmp_path / f"{name}.parquet", [pair])
    inputs = {role: Artifact("data", tmp_path, "0") for role in ("data", "encoder")}
    drawn = []
    for once in ("a", "b"):
        work = Workspace(tmp_path / once)
        assert stage.gold(Job({}, inputs, work)) == {"certificate": certificate}
        drawn.append({p.name: p.read_bytes() for p in (work.product / "plots").iterdir()})
    assert set(drawn[0]) == PICTURES and drawn[0] == drawn[1]
