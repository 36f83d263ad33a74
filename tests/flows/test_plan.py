"""`ratchet plan`: the table of quantities with their units."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from ratchet.components.errors import RecipeError
from ratchet.components.recipes.recipe import load
from ratchet.flows.cli import app
from ratchet.flows.commands.estimate import check_fits
from ratchet.flows.commands.plan import quantities, sizes
from ratchet.tasks.pipeline import Pipeline

DEVICE = {"training ranks": "1", "tokens per forward pass and rank": "2048"}


def table(name: str, *overrides: str, profile: str | None = None) -> dict[str, str]:
    result = sizes(*load(name, overrides=overrides, profile=profile))
    return dict(zip(*(column.cells for column in result.columns), strict=True))


def test_explain_writes_the_default_splits_out() -> None:
    """0.20, 0.04 and 0.06 of the 0.30 that the splits of SFT have together."""
    said = CliRunner().invoke(app, ["recipes", "explain", "sft"], catch_exceptions=False).output
    assert "data.splits: null stands for sft 0.67, sft_validation 0.13, evaluate 0.20, as far as" in said
    assert "stands for" not in CliRunner().invoke(app, ["recipes", "explain", "sft_gsm8k"]).output


def test_a_recipe_that_trains_nothing_is_planned_and_estimated(tmp_path: Path) -> None:
    ask = ["plan", "sentiment_best_of_n", "--home", str(tmp_path)]
    assert "12 to do" in CliRunner().invoke(app, ask, catch_exceptions=False).output
    stated = CliRunner().invoke(app, [*ask, "--estimate", "--profile", "gpu"], catch_exceptions=False).output
    assert "sampled tokens a second, computed from the profile's figures" in stated


def test_a_machine_is_too_small_only_once_the_length_of_the_texts_is_known(
    tiny_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, each has the greatest length of the recipe, and 8 GB would be refused for `instruct`."""
    memory, disk = 0.6e9, 1e12
    monkeypatch.setattr("ratchet.tasks.machine.calibration.memory_and_free_disk", lambda home: (memory, disk))
    unknown = Pipeline.open("sft", home=tmp_path, profile="test")
    check_fits(unknown)
    known = Pipeline.open("sft", home=tiny_home, profile="test")
    for name in ("raw", "drafts", "curated"):
        known.make(name)
    with pytest.raises(RecipeError, match="cannot run stage"):
        check_fits(known)
    memory, disk = 1e12, 0.0
    with pytest.raises(RecipeError, match="of disk"):
        check_fits(unknown)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "chat",
            {
                "SFT conversations per step": "8",
                "max SFT conversations": "160",
                "SFT epochs": "1",
                "reward models": "1",
                "reward epochs": "0 (linear probe only)",
                "rounds": "3",
                "prompts per round": "64",
                "responses per prompt": "6",
                "responses per round": "384",
                "max tokens per response": "40",
                "online pairs per step": "8",
                "epochs per round": "1",
                "max held-out prompts": "128",
                "responses per held-out prompt": "2",
                "max tokens per held-out response": "40",
            },
        ),
        (
            "dpo",
            {
                "offline pairs per step": "16",
                "offline epochs": "1",
                "max held-out prompts": "32",
                "responses per held-out prompt": "1",
                "max tokens per held-out response": "24",
            },
        ),
        (
            "rlvr_grpo",
            {
                "rounds": "30",
                "prompts per round": "8",
                "responses per prompt": "8",
                "responses per round": "64",
                "max tokens per response": "16",
                "online prompts per step": "8",
                "max online responses per step": "64",
                "epochs per round": "1",
                "max held-out prompts": "32",
                "responses per held-out prompt": "1",
                "max tokens per held-out response": "24",
            },
        ),
        (
            "ppo",
            {
                "rounds": "30",
                "prompts per round": "32",
                "responses per prompt": "2",
                "responses per round": "64",
                "max tokens per response": "16",
                "online prompts per step": "16",
                "max online responses per step": "32",
                "epochs per round": "2",
                "max held-out prompts": "32",
                "responses per held-out prompt": "1",
                "max tokens per held-out response": "24",
            },
        ),
    ],
)
def test_plan_lists_every_quantity_with_its_unit(name: str, expected: dict[str, str]) -> None:
    assert table(name) == {**expected, **DEVICE}


def test_the_control_has_the_sizes_of_what_it_controls() -> None:
    assert table("chat_offline") == table("chat")


def test_held_out_prompts_are_as_many_as_the_data_have() -> None:
    recipe, profile = load("dpo")
    assert quantities(recipe, profile)["max held-out prompts"] == 32
    for there, used in ((18, 18), (90, 32)):
        found = quantities(recipe, profile, {"evaluate": there})
        assert found["held-out prompts"] == used and "max held-out prompts" not in found


def test_plan_shows_profile_and_fit_quantities() -> None:
    many = table(
        "dpo",
        "offline.limit=500",
        "offline.fit.max_steps=9",
        "data.splits={reward: 0.6, reward_validation: 0.2, evaluate: 0.2}",
        "reward={fit: {updates: {reward_model: [{name: ranking.margin}]}, batch: 4}}",
        profile="node",
    )
    assert many["training ranks"] == "8" and many["tokens per forward pass and rank"] == "16384"
    assert many["max offline pairs"] == "500" and many["max offline steps"] == "9"
    assert many["reward pairs per step"] == "4" and many["reward epochs"] == "1"
    imitated = table("kto")
    assert imitated["offline groups per step"] == "16" and "offline pairs per step" not in imitated
