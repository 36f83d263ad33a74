"""Missing scores in the evaluation: no crash, not counted as zero, counted as missing."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ratchet.components.evaluation.scoring import human_logprobs, settled
from ratchet.components.inference.torch import TorchEngine
from ratchet.components.stages import evaluate
from ratchet.components.text.contract import context_length
from ratchet.components.types import Group, Prompt, Trajectory
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


def test_prompts_without_replies_have_no_perplexity(tmp_path: Path) -> None:
    rows = [{"prompt": f"What is {i} + {i}?", "answer": f"{2 * i}"} for i in range(8)]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "evaluated.yaml").write_text(
        "schema: 1\nabout: An evaluation alone.\n"
        "models: {policy: {source: 'generate:tiny?seed=0&hidden=64&layers=2', format: tiny}}\n"
        f"data: {{source: 'path:{tmp_path}/prompts.jsonl', splits: {{evaluate: 1.0}}, near_threshold: null, "
        "max_dropped: null}\n"
        "evaluate: {max_tokens: 4, metrics: [rewards.exact_answer]}\n"
    )
    pipeline = Pipeline.open(tmp_path / "evaluated.yaml", home=tmp_path / "home", profile="test")
    for name in pipeline.stages:
        artifact = pipeline.make(name)
    results = json.loads((artifact.path / "results.json").read_text())
    assert pipeline.stages[name].options["perplexity_rows"] > 0
    assert not [key for arm in results["arms"].values() for key in arm if "perplexity" in key]


def test_replies_beyond_the_context_are_left_out_of_the_perplexity(tiny_model: Path) -> None:
    """A model with a table of positions cannot read them."""
    engine = TorchEngine(tiny_model)
    held_out = [
        Group(
            Prompt(str(i), ({"role": "user", "content": "hello"},)),
            (Trajectory(({"role": "assistant", "content": text},)),),
        )
        for i, text in enumerate(["a short reply", "a longer reply " * 40])
    ]
    lengths = [len(engine.encode(group).trajectories[0].inputs["tokens"]) for group in held_out]
    assert len(human_logprobs(engine, held_out)[0]) == 2
    assert len(human_logprobs(engine, held_out, max(lengths))[0]) == 2
    logprobs, masks = human_logprobs(engine, held_out, max(lengths) - 1)
    assert [len(row) for row in logprobs] == [len(row) for row in masks] == [min(lengths)]
    assert human_logprobs(engine, held_out, 1) == ([], [])
    assert context_length(tiny_model) == 1024


def test_all_arms_have_the_perplexity_of_the_same_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that fit into the smallest context; a config may name none."""
    monkeypatch.setattr(evaluate, "context_length", {"a": 2048, "b": 512, "c": None}.get)

    def job(*models: str) -> Any:
        arms = {name: {"model": name} for name in models}
        return SimpleNamespace(options={"arms": arms}, path=lambda name: name)

    assert evaluate.shortest_context(job("a", "b", "c")) == 512
    assert evaluate.shortest_context(job("c")) is None


@pytest.mark.parametrize(("vocabulary", "compared"), [("a", True), ("b", False)])
def test_perplexities_are_compared_only_on_the_same_tokens(
    vocabulary: str, compared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("contrast", "summarise", "describe_quality", "kl_to", "SingleModelEngine"):
        monkeypatch.setattr(evaluate, name, lambda *_, **__: SimpleNamespace(loaded=lambda path: None))

    def answers(vocabulary: str) -> SimpleNamespace:
        return SimpleNamespace(meta={"contract": {"vocabulary": vocabulary, "template": "t"}})

    job: Any = SimpleNamespace(
        options={"profile": {}, "arms": {"initial": {"model": "initial"}}, "by": [], "reports": []},
        inputs={"answers_policy": answers(vocabulary), "answers_initial": answers("a")},
        path=lambda name: name,
    )
    scored: Any = SimpleNamespace(
        contrasts={"policy": ["initial"]}, final="policy", own=False, answers={"policy": []}
    )
    human = {arm: ([[-1.0, -2.0]], [[True, True]]) for arm in ("policy", "initial")}
    results: dict[str, Any] = {"metrics": {}}
    evaluate.compare(job, results, scored, human, [])
    assert ("perplexity_ratio.mean" in results["metrics"]) == compared
