"""Comparison of two runs: differences with their reasons, paired intervals of results."""

from __future__ import annotations

import pytest

from ratchet.components.errors import RecipeError
from ratchet.components.storage.store import write_atomic
from ratchet.tasks.tracking.differences import differences
from ratchet.tasks.tracking.outcome import find_run


@pytest.fixture
def runs(publish, run_of, tmp_path):
    base, data = publish("model_policy"), publish("curated", kind="data")
    found = []
    for name, rounds, scores in (("one", 1, [0.0, 1.0, 2.0, 3.0]), ("two", 2, [1.0, 2.0, 3.5, 4.0])):
        policy = publish("sft", {"policy": base, "data": data}, text=name)
        results = {
            "metrics": {
                "win_rate.mean": 0.5 + rounds / 10,
                "win_rate.low": 0.4,
                "win_rate.high": 0.9,
                "win_rate.n": 4,
                "kl": 1.0,
            },
            "per_prompt": {"final.reward.exact": scores, "win_rate": [1.0]},
            "lengths": {"final": [3, 4, 5, 6]},
        }
        report = publish("evaluate", {"policy": policy, "data": data}, kind="report", results=results)
        run = run_of(name, model_policy=base, curated=data, sft=policy, evaluate=report)
        write_atomic(run.path / "recipe.yaml", f"recipe: {{seed: 0, online: {{rounds: {rounds}}}}}\n")
        run.record(revision=f"rev{rounds}", packages={"torch": "2", "peft": str(rounds)})
        found.append(run.path)
    return found


def test_differences_of_recipe_code_stages_and_scores(runs):
    found = differences(*runs)
    assert found.recipe == [("recipe.online.rounds", "1", "2")]
    assert found.code == [("revision", "rev1", "rev2")] and found.packages == [("peft", "1", "2")]
    assert [s[:2] for s in found.stages] == [
        ("model_policy", "same artifact"),
        ("curated", "same artifact"),
        ("sft", "differs"),
        ("evaluate", "differs"),
    ]
    assert found.stages[2][2] == "source code" and found.stages[3][2] == "inputs"
    assert found.metrics == [("win_rate", "0.6 [0.4, 0.9]", "0.7 [0.4, 0.9]")]
    (score, first, other, gap), (length, *_, no_gap) = found.scores
    assert (
        (score, first, other) == ("reward.exact", 1.5, 2.625)
        and gap["mean"] == pytest.approx(1.125)
        and gap["low"] >= 1.0
    )
    assert length == "length" and no_gap["mean"] == 0.0


def test_differences_of_an_unfinished_run(runs):
    (runs[1] / "stages" / "evaluate").unlink()
    (runs[1] / "stages" / "sft").unlink()
    found = differences(*runs)
    assert (
        found.stages[2][1] == "only in the first"
        and found.scores[0][3] == "the other has no reward.exact for each held-out prompt"
    )
    assert find_run("one", runs[0].parent.parent) == runs[0] and find_run(str(runs[0]), runs[0]) == runs[0]
    with pytest.raises(RecipeError, match="'two'"):
        find_run("twoo", runs[0].parent.parent)
