"""Off-policy correction is added to a recipe if the sampler is not the learner's engine, and only then."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from ratchet.components.errors import RecipeError
from ratchet.components.recipes.changed_rounds import for_round
from ratchet.components.recipes.correction import corrected
from ratchet.components.recipes.plain_values import plain
from ratchet.components.recipes.profile import Profile, Vllm
from ratchet.components.recipes.recipe import load
from ratchet.components.recipes.schema import Recipe
from ratchet.components.training.objectives import parts
from ratchet.components.types import Batch, Outputs

VLLM = Profile(engine="vllm")


def prepared(recipe: Recipe) -> list[str]:
    assert recipe.online
    return [spec["name"] for spec in recipe.online.prepare]


def objectives(recipe: Recipe) -> list:
    assert recipe.online
    return list(recipe.online.fit.updates["policy"])


def test_only_policy_gradients_get_the_sampler_correction() -> None:
    recipe, _ = load("ppo")
    after = corrected(recipe, VLLM)
    assert prepared(after) == ["scoring.logprobs", "scoring.logprobs.old", "scoring.importance"]
    clip, value, kl = objectives(after)
    assert (clip["old"], clip["weight_column"]) == ("old", "importance"), (
        "ratios to the learner's own log-probs, not the sampler's"
    )
    assert [value, kl] == objectives(recipe)[1:], (
        "a value has no importance ratio, and a divergence is no policy gradient"
    )
    assert corrected(after, VLLM) == after, "once is enough"


@pytest.mark.parametrize(
    ("name", "profile"),
    [
        ("ppo", Profile()),
        ("ppo", Profile(engine="vllm", vllm=Vllm(importance_cap=None))),
        ("online_dpo", VLLM),
        ("raft", VLLM),
        ("sft", VLLM),
        ("chat", VLLM),
    ],
)
def test_on_policy_recipes_get_no_correction(name: str, profile: Profile) -> None:
    recipe, _ = load(name)
    assert corrected(recipe, profile) == recipe


def test_answers_that_the_engine_did_not_sample_get_no_correction() -> None:
    recipe, _ = load("wsrl_retained")
    assert corrected(recipe, VLLM) == recipe
    assert load("wsrl_retained", profile="gpu")[0].phases


def test_correction_cap_comes_from_the_profile_and_row_terms_get_row_weights() -> None:
    recipe, _ = load("rlvr_grpo", overrides=["online.fit.updates={policy: [{name: clip.row, old: sampled}]}"])
    after = corrected(recipe, Profile(engine="vllm", vllm=Vllm(importance_cap=5.0)))
    assert after.online and plain(after.online.prepare[-1]) == {
        "name": "scoring.importance.row",
        "cap": 5.0,
        "limit": 0.5,
    }
    assert objectives(after)[0]["weight_column"] == "importance.row"


def test_overridden_rounds_are_corrected_too() -> None:
    change = "online.by_round={2: {fit: {updates: {policy: [{name: reinforce}]}}}}"
    recipe, _ = load(
        "rloo",
        overrides=["online.cadence=round", "online.rounds=2", "online.prompts={name: disjoint}", change],
    )
    after = corrected(recipe, VLLM)
    assert (
        after.online and for_round(after.online, 2).fit.updates["policy"][0]["weight_column"] == "importance"
    )
    assert recipe.online and "weight_column" not in for_round(recipe.online, 2).fit.updates["policy"][0]


def test_a_profile_that_samples_with_vllm_corrects_what_it_loads(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("ratchet.components.recipes.recipe.load_profile", lambda name: VLLM)
    recipe, _ = load("rlvr_grpo")
    assert prepared(recipe) == ["scoring.logprobs", "scoring.logprobs.old", "scoring.importance"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "{name: reinforce, weight_column: importance}",
            r"'reinforce.weight_column' reads \['importance'\], which no earlier piece writes",
        ),
    ],
)
def test_impossible_correction_factor_is_a_recipe_error(spec: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        load(
            "rloo",
            overrides=[
                f"online.fit.updates={{policy: [{spec}]}}",
                "online.prepare=[{name: scoring.logprobs}]",
            ],
        )


def test_terms_are_multiplied_and_the_weight_is_a_metric() -> None:
    """Two rows of two steps: -A log pi = 1, 2 and 3, 4 times the weights 2, 1/2 and 1, 0; a weight a row
    times a term a step too.
    """
    mask = torch.ones(2, 2, dtype=torch.bool)
    weights = torch.tensor([[2.0, 0.5], [1.0, 0.0]])
    batch = Batch(
        {},
        mask,
        {"advantages": torch.ones(2, 2), "w": weights, "r": torch.tensor([2.0, 3.0])},
        torch.arange(2),
        torch.arange(2),
        ("a", "b"),
    )
    out = Outputs({"logprobs": -torch.tensor([[1.0, 2.0], [3.0, 4.0]])})
    spec = {"name": "reinforce", "weight": 1.0, "reduce": "token_mean", "label": "reinforce"}
    (part,) = parts([{**spec, "weight_column": "w"}])
    terms = part(out, batch)
    assert terms.loss.tolist() == [[2.0, 1.0], [3.0, 0.0]]
    assert terms.metrics["w"] is weights
    assert parts([{**spec, "weight_column": "r"}])[0](out, batch).loss.tolist() == [[2.0, 4.0], [9.0, 12.0]]
    assert parts([spec])[0](out, batch).loss.tolist() == [[1.0, 2.0], [3.0, 4.0]]
    with pytest.raises(ValueError, match="step"):
        dataclasses.replace(terms, loss=torch.ones(2)).weighted("w", weights)


def test_a_pair_is_weighted_by_the_column_of_its_chosen_row() -> None:
    """Two pairs of equal scores, each with the loss log 2, times the weights 0.5 and 0."""
    weights = torch.tensor([0.5, 9.0, 0.0, 9.0])
    rows = torch.arange(4)
    batch = Batch({}, torch.ones(4, 1, dtype=torch.bool), {"w": weights}, rows // 2, rows // 2, ("a",) * 4)
    spec = {"name": "ranking.bradley_terry", "weight": 1.0, "reduce": "unit_mean", "label": "bt"}
    (part,) = parts([{**spec, "weight_column": "w"}])
    terms = part(Outputs({"scores": torch.zeros(4)}), batch)
    assert terms.loss.tolist() == pytest.approx([0.5 * math.log(2), 0.0])
    assert terms.metrics["w"].tolist() == [0.5, 0.0]
