"""The estimate of memory against measured peaks of the recipe `instruct`, and the bounds that it uses."""

from __future__ import annotations

import pytest

from ratchet.components.estimates.costs import estimate
from ratchet.components.estimates.memory import kept_activations
from ratchet.components.estimates.shape import Shape
from ratchet.components.estimates.sizes import Sizes
from ratchet.components.estimates.split import Split
from ratchet.components.recipes.plan import plan
from ratchet.components.recipes.recipe import load

SMOL = Shape(30, 576, 9, 3, 64, 1536, 49152, True)
MEASURED = {
    "model_policy": 1.31,
    "demonstrated": 5.33,
    "sft": 3.99,
    "compared": 3.07,
    "reward": 3.57,
    "pairs": 2.78,
    "offline": 4.58,
    "rollout_1": 2.93,
    "annotate_1": 1.73,
    "annotate_2": 2.45,
    "select_1": 2.18,
    "optimise_1": 3.72,
    "answers_policy": 3.10,
    "evaluate": 3.74,
}
"""Peak memory in GB of stages of `instruct` that load a language model (docs/scale.md)."""


def curated_instruct() -> dict[str, Split]:
    """Sizes of the curated data of `instruct`."""
    return {
        "demonstrate": Split(288, 49.8, 67.0),
        "demonstrate_validation": Split(40, 50.3, 72.0),
        "preferences": Split(150, 50.2, 65.0),
        "preferences_validation": Split(90, 50.8, 64.0),
        "prompts": Split(600, 50.4, 72.0),
        "evaluate": Split(256, 50.0, 68.0),
    }


@pytest.mark.parametrize("stage", MEASURED)
def test_memory_of_instruct_before_a_first_run_is_within_30_percent(stage: str) -> None:
    recipe, profile = load("instruct", profile="cpu")
    costs = estimate(recipe, profile, plan(recipe, profile), SMOL, curated_instruct(), None)
    (cost,) = [c for c in costs if c.stage.name == stage]
    assert cost.bytes / 1e9 == pytest.approx(MEASURED[stage], rel=0.3)


def test_texts_of_data_made_from_answers_are_no_longer_than_a_prompt_and_an_answer() -> None:
    """`sft` learns from 8 texts a step, of 50 tokens and an answer of at most 48, whatever `sft.max_tokens`
    allows. With `reward.by_prompt` a step has 4 prompts with 8 answers each at most (6 of them in
    `demonstrate`), and the pairs of a prompt share it; online, 4 with 4.
    """
    recipe, profile = load("instruct", profile="cpu")
    names = ("demonstrate", "demonstrate_validation", "preferences", "preferences_validation", "prompts")
    splits = {name: Split(100, 50.0) for name in names}
    costs = estimate(recipe, profile, plan(recipe, profile), SMOL, splits, None)
    found = {c.stage.name: c.memory["activations"] for c in costs if "gradients" in c.memory}
    chunk = 12 * 256 * SMOL.vocabulary

    def kept(tokens: float, layers: int = 30) -> float:
        return kept_activations(SMOL, tokens, layers, bytes_each=4, checkpointing=False) + chunk

    assert found["sft"] == kept(8 * (50 + 48))
    assert found["reward"] == kept(4 * (50 + 8 * 48), layers=20)
    assert found["offline"] == kept(2 * (50 + 8 * 48))
    assert found["optimise_1"] == kept(4 * (50 + 4 * 48))


def test_reward_models_compute_no_logits() -> None:
    """Of 2,048 tokens: three hidden states, queries and MLP activations each of one layer, in 4 bytes, and
    what the heap keeps besides.
    """
    recipe, profile = load("chat", profile="cpu")
    sizes = Sizes(recipe, profile, SMOL, {})
    alone = sizes.scoring_memory(1, models=0, tokens=1000)["activations"]
    assert alone == 2 * 2048 * 4 * 3 * (576 + 576 + 1536)
    assert sizes.scoring_memory(1, models=1, tokens=1000)["activations"] > alone
