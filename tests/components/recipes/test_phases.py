"""Phases of a recipe: order, references, cycles, seeds, checks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from ratchet.components.errors import RecipeError
from ratchet.components.recipes.phases import phases
from ratchet.components.recipes.plan import Stage, plan
from ratchet.components.recipes.recipe import dump, load, reread

FIT = {"updates": {"policy": [{"name": "likelihood"}]}}
SFT = {"does": "learn", "data": "sft", "fit": FIT}
STEPS = {
    "does": "online",
    "cadence": "step",
    "rounds": 2,
    "annotate": ["rewards.length", {"name": "advantages.group_norm", "reward": "reward.length"}],
    "rollout": {"name": "sample", "responses_per_prompt": 2},
    "fit": {"updates": {"policy": [{"name": "reinforce"}]}},
}
TRIES = {
    "does": "groups",
    "data": "prompts",
    "rollout": {"name": "sample", "responses_per_prompt": 4},
    "annotate": ["rewards.length"],
    "select": [{"name": "best_of_n", "reward": "reward.length"}],
}
PAIRS = {**TRIES, "validation": "evaluate", "select": [{"name": "best_worst", "reward": "reward.length"}]}
JUDGE = {
    "does": "reward",
    "data": "tries",
    "validation": "tries_validation",
    "fit": {"updates": {"reward_model": [{"name": "ranking.bradley_terry"}]}},
}
BASE = {
    "schema": 1,
    "about": "Phases.",
    "models": {"policy": {"source": "generate:tiny?seed=0", "format": "tiny"}},
    "data": {"source": "generate:tiny_corpus?size=300&seed=3"},
}


def write(folder: Path, phases: dict[str, Any], **more: Any) -> Path:
    file = folder / "phased.yaml"
    file.write_text(yaml.safe_dump({**BASE, "phases": phases, **more}, sort_keys=False))
    return file


def stages(folder: Path, phases: dict[str, Any], **more: Any) -> dict[str, Stage]:
    return plan(*load(write(folder, phases, **more), profile="test"))


def test_each_phase_starts_from_the_last_that_advanced(tmp_path: Path) -> None:
    made = stages(
        tmp_path, {"warm": SFT, "aside": {**SFT, "advance": False}, "first": STEPS, "second": STEPS}
    )
    assert [made[name].inputs["policy"] for name in ("warm", "aside", "first", "second")] == [
        "model_policy",
        "warm",
        "warm",
        "first",
    ]
    assert [name for name, stage in made.items() if stage.policy] == ["warm", "first", "second"]


def test_of_names_a_model_or_an_earlier_phase(tmp_path: Path) -> None:
    made = stages(
        tmp_path,
        {"warm": SFT, "first": STEPS, "again": {**STEPS, "of": "warm"}, "anew": {**SFT, "of": "policy"}},
    )
    assert made["again"].inputs["policy"] == "warm"
    assert made["anew"].inputs["policy"] == "model_policy"


def test_a_reward_model_learns_from_the_groups_of_a_phase_and_scores_a_later_one(tmp_path: Path) -> None:
    online = {
        **STEPS,
        "annotate": [
            {"name": "rewards.reward_model", "model": "judge"},
            {"name": "advantages.group_norm", "reward": "reward.judge"},
        ],
    }
    made = stages(tmp_path, {"tries": PAIRS, "judge": JUDGE, "main": online})
    assert made["judge"].inputs["data"] == "tries" and made["judge"].options["data"] == "groups"
    assert made["judge"].options["validation"] == "groups_validation" and made["judge"].certifies == "judge"
    assert made["main"].inputs["judge"] == "judge"


def test_a_cycle_repeats_phases_and_uses_the_latest_product_of_a_name(tmp_path: Path) -> None:
    more = {"cycle": ["tries", "main"], "cycles": 3}
    learn = {**SFT, "data": "tries"}
    made = stages(tmp_path, {"warm": SFT, "tries": TRIES, "main": learn, "last": SFT}, **more)
    names = [name for name, stage in made.items() if stage.phase]
    assert names == ["warm", "tries", "main", "tries_2", "main_2", "tries_3", "main_3", "last"]
    assert made["main_2"].inputs == {"policy": "main", "data": "tries_2"}
    assert made["tries_3"].inputs["policy"] == "main_2" and made["last"].inputs["policy"] == "main_3"
    assert len({made[name].options["seed"] for name in ("tries", "tries_2", "tries_3")}) == 3


def test_a_phase_with_a_fixed_seed_has_one_key_for_all_seeds(tmp_path: Path) -> None:
    found = {"warm": {**SFT, "seed": 7}, "main": STEPS}
    one, other = (stages(tmp_path, found, seed=seed) for seed in (0, 1))
    assert one["warm"].key == other["warm"].key
    assert one["main"].key != other["main"].key


def test_a_section_with_a_fixed_seed_has_one_key_for_all_seeds() -> None:
    one, other = (plan(*load("chat", overrides=["sft.seed=0", f"seed={seed}"])) for seed in (0, 1))
    assert one["sft"].key == other["sft"].key and one["rollout_1"].key != other["rollout_1"].key


def test_sections_are_phases_of_their_names_before_the_others() -> None:
    assert [phase.name for phase in phases(load("instruct")[0])] == [
        "demonstrate",
        "sft",
        "preferences",
        "reward",
        "offline",
        "online",
    ]


def test_a_null_removes_a_phase_of_the_base(tmp_path: Path) -> None:
    base = write(tmp_path, {"warm": SFT, "main": STEPS})
    file = tmp_path / "mine.yaml"
    file.write_text(f"schema: 1\nbase: {base.name}\nphases: {{main: null}}\n")
    assert [phase.name for phase in phases(load(file)[0])] == ["warm"]


def test_stages_name_only_the_models_that_their_pieces_name(tmp_path: Path) -> None:
    other = {"source": "generate:tiny?seed=1", "format": "tiny"}
    models = {**BASE["models"], "used": other, "unused": other}
    scored = {**STEPS, "prepare": [{"name": "scoring.logprobs", "model": "used"}]}
    inputs = stages(tmp_path, {"main": scored}, models=models)["main"].inputs
    assert "used" in inputs and "unused" not in inputs


def test_a_dumped_recipe_with_phases_is_read_again(tmp_path: Path) -> None:
    recipe, profile = load(write(tmp_path, {"warm": SFT, "tries": TRIES, "main": STEPS}), profile="test")
    assert {n: s.key for n, s in plan(*reread(dump(recipe, profile))).items()} == {
        n: s.key for n, s in plan(recipe, profile).items()
    }


@pytest.mark.parametrize(
    ("found", "more", "message"),
    [
        ({"warm": {**SFT, "does": "lern"}}, {}, "phases.warm.does: expected one of"),
        ({"warm": {**SFT, "does": None}}, {}, "phases.warm.does: expected one of"),
        ({"warm": {**SFT, "limt": 3}}, {}, "phases.warm.limt: unknown key 'limt'; did you mean 'limit'"),
        ({"warm": {**SFT, "limit": "x"}}, {}, "phases.warm.limit: expected a whole number"),
        ({"warm": SFT, "main": {**STEPS, "of": "wram"}}, {}, "phases.main.of: no model or earlier phase"),
        ({"main": {**STEPS, "of": "warm"}, "warm": SFT}, {}, "phases.main.of: no model or earlier phase"),
        (
            {"tries": TRIES, "warm": {**SFT, "data": "tres"}},
            {},
            "phases.warm.data: 'tres' is neither a split nor",
        ),
        (
            {"warm": {**SFT, "data": "tries"}, "tries": TRIES},
            {},
            "phases.warm.data: the phase that makes 'tries'",
        ),
        (
            {"tries": TRIES, "judge": {**JUDGE, "validation": "tries"}},
            {},
            "phases.judge.data: expected preference pairs",
        ),
        (
            {"best": TRIES, "tries": PAIRS, "judge": {**JUDGE, "also": "best"}},
            {},
            "phases.judge.also: expected preference pairs, but phases.best makes none",
        ),
        (
            {"tries": PAIRS, "judge": {**JUDGE, "also": "tires"}},
            {},
            "phases.judge.also: 'tires' is neither a split nor",
        ),
        ({"tries": PAIRS, "warm": {**SFT, "data": "tries"}}, {}, "would also train on the rejected answers"),
        (
            {"tries": {**TRIES, "annotate": []}},
            {},
            "phases.tries.select: 'best_of_n' reads ['reward.length']",
        ),
        ({"sft": SFT}, {}, "phases.sft: 'sft' is a section"),
        ({"evaluate": SFT}, {}, "phases.evaluate: 'evaluate' has a meaning already"),
        ({"policy": SFT}, {}, "phases.policy: 'policy' has a meaning already"),
        ({"warm": SFT, "main": STEPS}, {"cycle": ["main", "warm"]}, "cycle: expected neighbouring phases"),
        ({"warm": SFT}, {"cycle": ["wram"]}, "cycle[0]: no phase named 'wram'; did you mean 'warm'"),
        ({"warm": SFT}, {"cycles": 2}, "cycles: needs `cycle`"),
        (
            {"main": {**STEPS, "prepare": [{"name": "scoring.logprobs", "model": "wram"}]}},
            {},
            "needs the model 'wram'",
        ),
    ],
)
def test_a_wrong_phase_is_refused(
    found: dict[str, Any], more: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(RecipeError) as refused:
        load(write(tmp_path, found, **more))
    assert message in str(refused.value)


def test_a_validation_that_the_section_offline_would_ignore_is_an_error():
    changes = ["offline.validation=pairs_validation", "data.splits.pairs_validation=0.2"]
    with pytest.raises(
        RecipeError, match=r"offline\.validation: the loss is validated on groups as they are"
    ):
        load("dpo", overrides=changes)
