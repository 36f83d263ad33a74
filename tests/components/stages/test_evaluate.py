"""Missing scores in the evaluation: no crash, not counted as zero, counted as missing."""

from __future__ import annotations

import json
from pathlib import Path

from ratchet.components.evaluation.scoring import settled
from ratchet.tasks.pipeline import Pipeline


def test_unscored_answer_ranks_last_of_all_arms() -> None:
    scores = {
        "initial": {
            "reward.a": [[None, 0.5], [float("nan"), -2.0]],
            "gold": [[1.0, 2.0], [3.0, 4.0]],
            "reward.b": [[None, None], [None, None]],
        },
        "policy": {
            "reward.a": [[3.0, None], [0.1, 0.2]],
            "gold": [[0.0, 0.0], [0.0, 0.0]],
            "reward.b": [[None, None], [None, None]],
        },
    }
    full, counts = settled(scores)
    assert full == {
        "initial": {"reward.a": [[-2.0, 0.5], [-2.0, -2.0]], "gold": [[1.0, 2.0], [3.0, 4.0]]},
        "policy": {"reward.a": [[3.0, -2.0], [0.1, 0.2]], "gold": [[0.0, 0.0], [0.0, 0.0]]},
    }
    assert counts == {"answers without reward.a": 3, "answers without reward.b": 8}


def test_arm_without_one_score_ranks_last() -> None:
    full, _ = settled({"initial": {"reward.a": [[1.0]]}, "policy": {"reward.a": [[None]]}})
    assert full == {"initial": {"reward.a": [[1.0]]}, "policy": {"reward.a": [[1.0]]}}


def test_metric_without_values_is_omitted_and_counted(tiny_home: Path) -> None:
    """The prompts hold no instruction, so the verifier fails on each: 6 prompts, 2 answers each, by 2
    arms.
    """
    pipeline = Pipeline.open(
        "sft",
        home=tiny_home,
        profile="test",
        overrides=[
            "sft.limit=48",
            "evaluate.prompts=6",
            "evaluate.responses_per_prompt=2",
            "evaluate.max_tokens=8",
            "evaluate.metrics=[{name: rewards.instructions}, {name: rewards.length}]",
        ],
    )
    for name in pipeline.stages:
        artifact = pipeline.make(name)
    counts = artifact.meta["counts"]
    assert (
        counts["prompts"] == 6
        and counts["answers"] == 24
        and counts["answers without reward.instructions"] == 24
    )
    metrics = json.loads((artifact.path / "results.json").read_text())["metrics"]
    assert "final.reward.length" in metrics and not [name for name in metrics if "instructions" in name]
