"""Schedules of objectives over the rounds of a phase."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.components.pieces.schedules.anneal import Anneal
from ratchet.components.stages.run import as_request, execute
from ratchet.tasks.pipeline import Pipeline

CHANGES = [
    "online.cadence=round",
    "online.rounds=3",
    "online.prompts={name: disjoint}",
    "online.prompts_per_round=4",
    "online.rollout.responses_per_prompt=2",
    "online.rollout.max_tokens=6",
    "online.health=null",
    "online.prepare=[{name: scoring.logprobs, model: reference}]",
    "online.fit.batch=2",
    "online.fit.min_ended=0.0",
    "online.fit.updates.policy=[{name: reinforce, reduce: row_sum}, {name: kl, reduce: token_mean, "
    "weight: {name: anneal, start: 1.0, end: 0.0, steps: 4}}]",
    "online.by_round={3: {fit: {updates: {policy: [{name: kl, reduce: token_mean, "
    "weight: {name: adaptive_kl, target: 0.1}}]}}}}",
]


def test_schedules_continue_from_the_round_before(
    tiny_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two steps a round, each of one micro-batch. In round 3 another schedule takes over."""
    pipeline = Pipeline.open("rloo", home=tiny_home, profile="test", overrides=CHANGES)
    for name in list(pipeline.stages)[: list(pipeline.stages).index("optimise_3")]:
        pipeline.make(name)
    value, used = Anneal.value, list[float]()
    monkeypatch.setattr(Anneal, "value", lambda self: used.append(value(self)) or used[-1])
    weights = []
    for name in ("optimise_1", "optimise_2", "optimise_3"):
        stage = pipeline.stages[name]
        inputs = {key: pipeline.artifact(made) for key, made in stage.inputs.items()}
        execute(as_request(stage.does, stage.options, inputs, tmp_path / name))
        weights.append(list(dict.fromkeys(used)))
        used.clear()
    assert weights == [[1.0, 0.75], [0.5, 0.25], []]
