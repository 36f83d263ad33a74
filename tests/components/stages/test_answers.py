"""Arms of the evaluation: keys of their answers, recipes with arms of their own, resumption, memory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ratchet.components.data.groups import read_groups
from ratchet.components.errors import RecipeError
from ratchet.components.recipes.check_data import check_files
from ratchet.components.recipes.plan import Stage, plan
from ratchet.components.recipes.recipe import load
from ratchet.components.stages import engines
from ratchet.components.stages.engines import LazyMapping, SingleModelEngine
from ratchet.components.storage.store import read_manifest
from ratchet.tasks.pipeline import Pipeline

ROOT = Path(__file__).resolve().parents[3]
ALONE = """
schema: 1
about: Three ways to decode one model, without training.
models: {policy: {source: "generate:tiny?seed=0", format: tiny}}
data: {source: "generate:tiny_openers?seed=1", splits: {evaluate: 0.6, evaluate_validation: 0.4}, near_threshold: null, decontaminate: null}
evaluate:
  arms:
    plain: {model: base}
    greedy: {model: base, rollout: {responses_per_prompt: 1, temperature: 0}}
    best: {model: base, best_of: {n: 4, annotate: [rewards.sentiment]}}
    other: {model: base, data: evaluate_validation}
    other_greedy: {model: base, data: evaluate_validation, rollout: {temperature: 0}}
  prompts: 8
  responses_per_prompt: 2
  max_tokens: 8
  perplexity_rows: 0
  metrics: [rewards.sentiment]
  measures: [fluency, repetition]
"""  # noqa: E501


def stages(recipe: str, *changes: str) -> dict[str, Stage]:
    return plan(*load(recipe, overrides=changes))


def moved(one: dict[str, Stage], two: dict[str, Stage]) -> set[str]:
    return {name for name in two if name not in one or one[name].key != two[name].key}


def test_recipes_with_one_model_and_one_data_set_share_its_answers() -> None:
    one, two = stages("sentiment_rloo"), stages("sentiment_rwr")
    assert one["answers_base"].key == two["answers_base"].key
    assert one["answers_policy"].key != two["answers_policy"].key


def test_a_changed_measure_or_gate_moves_the_evaluation_only() -> None:
    before = stages("sentiment_rloo")
    for change in (
        "evaluate.measures=[ead]",
        "evaluate.transcripts=3",
        "evaluate.perplexity_rows=8",
        "register.gates={final.length: {below: 30}}",
    ):
        assert moved(before, stages("sentiment_rloo", change)) == {"evaluate"}, change


def test_a_changed_decoding_moves_the_answers_and_the_evaluation_only() -> None:
    before, after = stages("sentiment_rloo"), stages("sentiment_rloo", "evaluate.temperature=0.5")
    assert moved(before, after) == {"answers_base", "answers_policy", "evaluate"}


def test_seeds_share_answers_if_the_evaluation_has_a_seed() -> None:
    one, two = (stages("sentiment_rloo", "evaluate.seed=0", f"seed={seed}") for seed in (1, 2))
    assert one["answers_base"].key == two["answers_base"].key
    one, two = (stages("sentiment_rloo", f"seed={seed}") for seed in (1, 2))
    assert one["answers_base"].key != two["answers_base"].key


def test_equal_arms_share_one_stage() -> None:
    arms = "one: {model: base}, two: {model: base}, hot: {model: base, rollout: {temperature: 2}}"
    found = stages("sentiment_rloo", f"evaluate.arms={{{arms}}}", "claim=null")["evaluate"].inputs
    assert found["answers_one"] == found["answers_two"] == "answers_one"
    assert found["answers_hot"] == "answers_hot"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["evaluate.arms={a: {model: nosuch}}"], r"evaluate\.arms\.a\.model: no model or phase .* 'nosuch'"),
        (["evaluate.arms={final: {model: base}}"], r"evaluate\.arms\.final: .* other metrics; rename"),
        (["evaluate.arms={Big: {model: base}}"], r"evaluate\.arms\.Big: expected a name of lower-case"),
        (["evaluate.arms={}"], r"evaluate\.arms: expected at least one arm"),
        (["evaluate.arms={a: {data: nosuch}}"], r"evaluate\.arms\.a\.data: .*'nosuch'"),
        (["evaluate.arms={a: {data: sft}}"], r"evaluate\.arms\.a\.data: 'sft' is not in data\.splits"),
        (["evaluate.arms={a: {rollout: nosuch}}"], r"evaluate\.arms\.a\.rollout: no rollout piece .*nosuch"),
        (
            ["evaluate.arms={a: {rollout: {heat: 1}}}"],
            r"evaluate\.arms\.a\.rollout: 'sample' takes no 'heat'",
        ),
        (
            ["evaluate.arms={a: {best_of: {annotate: [rewards.nosuch]}}}"],
            r"evaluate\.arms\.a\.best_of\.annotate.*no annotate piece",
        ),
        (
            ["evaluate.arms={a: {}}", "evaluate.best_of={annotate: [rewards.sentiment]}"],
            r"evaluate\.best_of: with `evaluate\.arms`",
        ),
        (
            ["evaluate.arms={a: {}, b: {}}", "register.gates={hot.length: {below: 3}}"],
            r"register\.gates\.hot\.length: no arm 'hot' \(a, b\)",
        ),
        (
            ["evaluate.arms={a: {}, b: {}}", "register.gates={fluency_vs_c: {over: 0}}"],
            r"register\.gates\.fluency_vs_c: no arm 'c' \(a, b\)",
        ),
        (
            ["evaluate.arms={a: {}, b: {}}", "register.gates={b.nosuch: {over: 0}}"],
            r"register\.gates\.b\.nosuch: the evaluation of this recipe has no such metric",
        ),
        (["evaluate.measures=[repetition, repetition]"], r"two measures are called 'repetition'"),
    ],
)
def test_an_impossible_arm_is_refused(changes: list[str], message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        load("sentiment_rloo", overrides=["claim=null", *changes])


def test_an_arm_longer_than_the_models_context_is_refused() -> None:
    changes = ["claim=null", "evaluate.arms={a: {rollout: {max_tokens: 5000}}}"]
    with pytest.raises(RecipeError, match=r"evaluate\.arms\.a\.rollout\.max_tokens: got 5000"):
        check_files(load("sentiment_rloo", overrides=changes)[0])


@pytest.fixture(scope="module")
def alone(tiny_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Pipeline:
    file = tmp_path_factory.mktemp("alone") / "alone.yaml"
    file.write_text(ALONE)
    pipeline = Pipeline.open(file, home=tiny_home, profile="test")
    for name in pipeline.stages:
        pipeline.make(name)
    return pipeline


def test_models_and_an_evaluation_are_a_recipe(alone: Pipeline) -> None:
    made = {stage.does for stage in alone.stages.values()}
    assert made == {"make_tiny", "fetch_data", "curate", "validate", "answers", "evaluate"}
    results = json.loads((alone.artifact("evaluate").path / "results.json").read_text())
    assert list(results["arms"]) == ["plain", "greedy", "best", "other", "other greedy"]
    metrics, rows = results["metrics"], results["per_prompt"]
    assert metrics["best.reward.sentiment"] == results["arms"]["best"]["reward.sentiment"]
    assert metrics["final.reward.sentiment"] == metrics["other_greedy.reward.sentiment"]
    assert metrics["fluency_vs_other.n"] == 8 and "fluency_vs_best.mean" not in metrics
    assert {name for name in metrics if name.startswith("fluency_vs_") and name.endswith(".mean")} == {
        "fluency_vs_plain.mean",
        "fluency_vs_greedy.mean",
        "fluency_vs_other.mean",
    }
    assert len(rows["plain.fluency"]) == 8
    assert all(len(row["answers"]) == 2 for row in results["transcripts"]), (
        "arms with the final one's prompts"
    )
    page = (alone.artifact("evaluate").path / "report.html").read_text()
    assert all(title in page for title in ("best − greedy", "other greedy − other", "plain"))


def test_an_arm_answers_with_its_own_rollout(alone: Pipeline) -> None:
    groups = {
        name: read_groups(alone.artifact(f"answers_{name}").path / "groups.parquet")
        for name in ("plain", "greedy", "best", "other")
    }
    assert {len(g.trajectories) for g in groups["plain"]} == {2}
    assert {len(g.trajectories) for g in groups["greedy"]} == {1}
    assert {len(g.trajectories) for g in groups["best"]} == {2}, "best of four, twice"
    drawn = {t.meta["sample"] for g in groups["best"] for t in g.trajectories}
    assert drawn > {0} and all(
        [t.meta["sample"] // 4 for t in g.trajectories] == [0, 1] for g in groups["best"]
    )
    assert {g.prompt.id for g in groups["plain"]}.isdisjoint(g.prompt.id for g in groups["other"])


KILLED = """
import os, signal, sys
from pathlib import Path
from ratchet.tasks.pipeline import Pipeline
pipeline = Pipeline.open(sys.argv[1], home=Path(sys.argv[2]), profile="test")
for name in pipeline.stages:
    if name == "answers_greedy":
        os.kill(os.getpid(), signal.SIGKILL)
    pipeline.make(name)
"""


def test_a_run_killed_between_two_arms_keeps_the_answers_of_the_first(
    alone: Pipeline, fresh_home: Callable[[str], Path], tmp_path: Path
) -> None:
    file, home = tmp_path / "alone.yaml", fresh_home("killed")
    file.write_text(ALONE)
    command = [sys.executable, "-c", KILLED, str(file), str(home)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "infra" / "package")}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    pipeline = Pipeline.open(file, home=home, profile="test")
    states = {one.stage.name: one.state for one in pipeline.status()}
    assert states["answers_plain"] == "done" and states["answers_greedy"] == "run"
    before = read_manifest(pipeline.artifact("answers_plain").path)
    for name in pipeline.stages:
        pipeline.make(name)
    assert read_manifest(pipeline.artifact("answers_plain").path) == before
    one, two = (
        json.loads((run.artifact("evaluate").path / "results.json").read_text()) for run in (alone, pipeline)
    )
    assert one["metrics"] == two["metrics"] and one["per_prompt"] == two["per_prompt"]


def test_one_engine_holds_one_model(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[str] = []

    class Engine:
        def load(self, path: Path) -> None:
            loaded.append(f"reload {path}")

    def make(profile: Any, path: Path) -> Engine:
        loaded.append(f"load {path}")
        return Engine()

    monkeypatch.setattr(engines, "sharded_engine", make)
    one = SingleModelEngine({})
    own = LazyMapping(a=lambda: one.loaded(Path("a")), b=lambda: one.loaded(Path("b")))
    assert "a" in own and "c" not in own and set(own) == {"a", "b"} and loaded == []
    assert own["a"] is own["a"] is own["b"]
    assert loaded == ["load a", "reload b"]
    one.release()
    assert own["b"] and loaded[-1] == "load b"
