"""Metric names known from a recipe equal those written by its evaluation."""

from __future__ import annotations

import dataclasses
import json
import typing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ratchet.components.evaluation.measured import ENDS, measured
from ratchet.components.evaluation.results import proxy_gold
from ratchet.components.recipes.plan import plan
from ratchet.components.recipes.recipe import load
from ratchet.components.stages import engines
from ratchet.components.stages import evaluate as stage
from ratchet.components.stages.job import Job
from ratchet.components.storage.store import Workspace
from ratchet.components.types import Artifact, Context, Group, Prompt, Trajectory

HELD_OUT = [
    Group(
        Prompt(f"{i}", ({"role": "user", "content": f"question {i}"},), "1"),
        (
            Trajectory(
                ({"role": "assistant", "content": f"a reply to {i}"},),
                {"tokens": [1, 2, 3]},
                [False, True, True],
            ),
        ),
    )
    for i in range(3)
]


class Anything:
    """Stub of any model, encoder or reward model: has every column for every answer."""

    certificate: typing.ClassVar = {"passed": True}
    encoder = staticmethod(lambda texts: np.eye(8)[np.arange(len(texts)) % 8])

    def load(self, *_: Any) -> Anything:
        return self

    def encode(self, group: Group) -> Group:
        encoded = {"inputs": {"tokens": [1, 2, 3]}, "mask": [False, True, True]}
        return group.replace([dataclasses.replace(t, **encoded) for t in group.trajectories])

    def score(self, groups: list[Group], outputs: frozenset[str]) -> list[dict[str, Any]]:
        return [
            {
                "logprobs": [[0.0, -1.0, -2.0] for _ in g.trajectories],
                "scores": [float(len(t.text)) for t in g.trajectories],
            }
            for g in groups
        ]

    def score_replies(self, conversations: list[Any]) -> list[float]:
        return [float(len(c[-1]["content"])) for c in conversations]


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("chat", []),
        ("chat", ["evaluate.perplexity_rows=0", "register=null"]),
        ("sft", []),
        ("dpo", []),
        ("reward_ensemble", []),
        ("rlvr_grpo", []),
        (
            "chat",
            [
                "evaluate.gold=false",
                "online.watch.gold=false",
                "online.health={reward_without_gold: null, gold_drop: null}",
                "register=null",
                "models.encoder=null",
                "claim=null",
            ],
        ),
        ("chat", ["sft=null", "register=null"]),
        (
            "chat",
            [
                "reward.members=2",
                "reward.fit.epochs=1",
                "online.annotate=[]",
                "online.select=[]",
                "online.prepare=[]",
                "online.fit.updates.policy=[{name: likelihood}]",
            ],
        ),
        ("instruct_best_of_n", ["evaluate.metrics=[{name: rewards.length}]", "register=null", "claim=null"]),
        (
            "dpo",
            [
                "evaluate.arms={initial: {model: base}, hot: {rollout: {temperature: 2}}, policy: {}, "
                "other: {data: reward}, last: {data: reward}}",
                "evaluate.metrics=[{name: rewards.length}]",
                "evaluate.measures=[repetition, {name: repetition, label: again}]",
            ],
        ),
        (
            "dpo",
            [
                "evaluate.arms={initial: {model: base}, "
                "policy: {rollout: {name: conjugate, words: {tea: chai}}}}",
                "evaluate.metrics=[{name: rewards.length}]",
            ],
        ),
        (
            "dpo",
            [
                "models.safety={source: 'path:safety'}",
                "evaluate.metrics=[{name: rewards.reward_model, model: safety}, {name: rewards.length}]",
            ],
        ),
    ],
)
def test_measured_names_equal_the_evaluations_metrics(
    name: str, changes: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, profile = load(name, overrides=changes)
    planned = plan(recipe, profile)["evaluate"]
    inputs = {
        role: Artifact("weights", tmp_path, key, meta={"certificate": {"passed": True}, "round_metrics": {}})
        for role, key in planned.inputs.items()
    }
    answers = [
        Group(
            g.prompt,
            tuple(
                Trajectory(
                    ({"role": "assistant", "content": f"answer {i} of mine"},),
                    {"tokens": [1, 2, 3]},
                    [False, True, True],
                    [0.0, -1.0, -1.0] if "conjugate" not in str(changes) else None,  # it rewrites answers
                )
                for i in range(2)
            ),
        )
        for g in HELD_OUT
    ]
    others = {role: Anything() for role in planned.inputs if role != "base"}
    for what, fake in {
        "read_groups": lambda path: answers if path.name == "groups.parquet" else HELD_OUT,
        "context_length": lambda path: None,
        "GoldMeasure": Anything(),
        "Encoder": lambda *_: Anything.encoder,
        "context_of": lambda *_, **__: Context(models=others),
        "write_report": lambda *_: None,
    }.items():
        monkeypatch.setattr(stage, what, fake)
    monkeypatch.setattr(engines, "sharded_engine", lambda *_: Anything())
    work = Workspace(tmp_path)
    work.product.mkdir(parents=True)
    stage.evaluate(Job(planned.options, inputs, work))
    written = json.loads((work.product / "results.json").read_text())["metrics"]
    description = measured(recipe)
    assert set(written) == {metric for metric, interval in description.items() if not interval} | {
        f"{metric}.{end}" for metric, interval in description.items() if interval for end in ENDS
    }


def test_the_proxy_is_the_reward_models_score_and_not_a_reward_that_contains_the_gold_score() -> None:
    rounds = [
        {"round": 1, "reward": 21.0, "reward.judge": 1.0, "gold": 0.5, "gold.error": 0.1},
        {"round": 2, "reward": 3.0},
    ]
    (row,) = proxy_gold(rounds, ["judge"])
    assert row == {
        "round": 1,
        "proxy": 1.0,
        "gold": 0.5,
        "gold_low": pytest.approx(0.304),
        "gold_high": pytest.approx(0.696),
    }
    assert proxy_gold(rounds, [])[0]["proxy"] == 21.0
