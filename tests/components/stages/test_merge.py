"""The weighted mean of models, and arms of an evaluation between two models."""

from __future__ import annotations

import pytest
import torch

from ratchet.components.errors import ContractError, RecipeError
from ratchet.components.recipes.plan import plan
from ratchet.components.recipes.recipe import load
from ratchet.components.stages.merge import mean_state


def test_the_mean_of_parameters_by_hand() -> None:
    a = {"w": torch.tensor([1.0, 2.0], dtype=torch.bfloat16), "steps": torch.tensor(3)}
    b = {"w": torch.tensor([5.0, 0.0], dtype=torch.bfloat16), "steps": torch.tensor(9)}
    found = mean_state({"a": a, "b": b}, {"a": 0.75, "b": 0.25})
    assert found["w"].tolist() == [2.0, 1.5] and found["w"].dtype == torch.bfloat16 and found["steps"] == 3
    assert torch.equal(mean_state({"a": a, "b": b}, {"a": 1.0, "b": 0.0})["w"], a["w"])
    with pytest.raises(ContractError, match="'a' and 'b' have different parameters"):
        mean_state({"a": a, "b": {"w": torch.zeros(3), "steps": torch.tensor(0)}}, {"a": 0.5, "b": 0.5})


def test_an_arm_between_models_is_a_stage_of_its_own() -> None:
    stages = plan(*load("interpolation"))
    half, quarter = stages["merged_half"], stages["merged_quarter"]
    assert half.options["weights"] == {"base": 0.5, "policy": 0.5} and half.key != quarter.key
    assert half.inputs == {"base": "model_policy", "policy": "improve"}
    assert stages["answers_half"].inputs["policy"] == "merged_half"
    assert stages["evaluate"].inputs["merged_half"] == "merged_half"


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("{base: 0.5, policy: 0.6}", r"half\.model: expected weights that add up to 1, got 1\.1"),
        ("{base: 0.5, nosuch: 0.5}", r"half\.model: no model or phase with a policy named 'nosuch'"),
    ],
)
def test_weights_of_an_arm_are_checked(model: str, says: str) -> None:
    with pytest.raises(RecipeError, match=says):
        load(
            "interpolation",
            overrides=["claim=null", "evaluate.arms.half=null", f"evaluate.arms.half={{model: {model}}}"],
        )
