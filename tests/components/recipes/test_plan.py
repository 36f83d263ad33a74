"""Inputs of a plan's stages."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from ratchet.components.errors import RecipeError
from ratchet.components.piece import SLOTS, catalogue
from ratchet.components.recipes.plan import Stage, plan, starts
from ratchet.components.recipes.recipe import load


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        (["online.keep_earlier=true"], {1: [1], 2: [1, 2], 3: [1, 2, 3], 4: [1, 2, 3, 4]}),
        (["online.keep_earlier=false"], {1: [1], 2: [2], 3: [3], 4: [4]}),
        (["online.by_round={4: {keep_earlier: true}}"], {1: [1], 2: [2], 3: [3], 4: [1, 2, 3, 4]}),
        (
            [
                "online.keep_earlier=true",
                "online.by_round={2: {keep_earlier: false}, 3: {keep_earlier: false}}",
            ],
            {1: [1], 2: [2], 3: [3], 4: [1, 2, 3, 4]},
        ),
    ],
)
def test_each_earlier_round_is_kept_once(changes: list[str], kept: dict[int, list[int]]) -> None:
    stages = plan(*load("chat", overrides=["online.rounds=4", "online.prompts_per_round=8", *changes]))

    def rounds_in(stage: Stage) -> Counter[int]:
        """How often the product of a `select` holds the pairs of each round."""
        return sum(
            (rounds_in(stages[v]) for k, v in stage.inputs.items() if k.startswith("earlier_")),
            Counter([stage.round or 0]),
        )

    assert {i: sorted(rounds_in(stages[f"select_{i}"]).elements()) for i in kept} == kept


@pytest.mark.parametrize(
    ("changes", "read"),
    [
        ([], "preferences"),
        (["preferences=null", "reward=null", "online=null"], "demonstrations"),
        (["offline.data=pairs", "data.splits.pairs=0.1"], "curated"),
    ],
)
def test_offline_learning_on_the_split_reward_reads_the_pairs_that_a_stage_made(
    changes: list[str], read: str
) -> None:
    offline = "offline={data: reward, fit: {updates: {policy: [{name: preference.simpo}]}}}"
    stages = plan(*load("instruct", overrides=[offline, *changes]))
    assert stages["pairs"].inputs["data"] == read


def test_preferences_without_a_reward_model_make_no_pairs_to_certify_one() -> None:
    offline = "offline={data: reward, fit: {updates: {policy: [{name: preference.simpo}]}}}"
    stages = plan(*load("instruct", overrides=[offline, "reward=null", "online=null"]))
    assert (
        stages["compared"].options["unread"] == ["reward_validation"]
        and "reward_validation" not in stages["preferences"].options["section"]["splits"]
    )


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("instruct_dpo", {"answers_policy", "evaluate"}),
        ("instruct_best_of_n", {"answers_policy", "evaluate"}),
        ("instruct_rlvr", {"improve", "answers_policy", "evaluate"}),
        (
            "instruct_offline",
            {f"{step}_{i}" for step in ("rollout", "annotate", "select", "optimise") for i in (2, 3)}
            | {"answers_policy", "evaluate"},
        ),
    ],
)
def test_control_recipe_shares_all_equal_stages(name: str, own: set[str]) -> None:
    whole, control = (plan(*load(recipe)) for recipe in ("instruct", name))
    assert {stage for stage in control if stage not in whole or control[stage].key != whole[stage].key} == own


def test_demonstrations_have_pairs_to_certify_the_reward_model_that_they_train() -> None:
    whole = plan(
        *load(
            "instruct",
            overrides=[
                "preferences=null",
                "offline=null",
                "online=null",
                "evaluate=null",
                "register=null",
                "claim=null",
            ],
        )
    )
    assert "reward_validation" in whole["demonstrations"].options["section"]["splits"]


def test_rollout_by_rounds_is_given_the_models_of_its_mixture() -> None:
    changes = [
        "online={cadence: round, rounds: 2, prompts: {name: disjoint}}",
        "online.rollout.weights={policy: 0.5, reference: 0.25, initial: 0.25}",
    ]
    stages = plan(*load("nash_md", overrides=changes))
    trained = stages["optimise_1"].inputs["policy"]
    assert stages["rollout_2"].inputs == {
        "policy": "optimise_1",
        "data": "curated",
        "reference": trained,
        "initial": trained,
    }
    plain = plan(*load("sentiment_rloo", overrides=changes[:1]))
    assert set(plain["rollout_2"].inputs) == {"policy", "data"}


def test_mixture_with_an_unknown_model_is_refused() -> None:
    with pytest.raises(RecipeError, match=r"needs the model 'refernce'.*did you mean 'reference'"):
        load("nash_md", overrides=["online.rollout.weights={policy: 0.5, refernce: 0.5}"])
    with pytest.raises(RecipeError, match="weights"):
        load("nash_md", overrides=["online.rollout.weights={policy: heavy}"])


def test_code_of_an_environment_and_of_its_verifier_is_in_the_key_of_the_stage_that_runs_it() -> None:
    improve = plan(*load("try_again"))["improve"]
    reached = starts("improve", improve.options)
    assert {
        ("ratchet.components.pieces.environments.retry", "Retry"),
        ("ratchet.components.pieces.rewards.exact_answer", "exact_answer"),
    } <= reached
    assert "reference" in improve.inputs and set(improve.inputs) == {"policy", "reference", "data"}


def test_a_recipe_in_an_environment_is_evaluated_in_it() -> None:
    """The rollout of the last online phase, once per prompt at the evaluation's temperature; `sample` for
    other recipes, and another rollout if the evaluation names one.
    """
    stages = plan(*load("try_again", overrides=["evaluate.temperature=0.5"]))
    rollouts = {name: s.options["rollout"] for name, s in stages.items() if s.does == "answers"}
    trained = stages["improve"].options["rollout"]
    assert rollouts.keys() == {"answers_base", "answers_initial", "answers_policy"}
    for rollout in rollouts.values():
        assert rollout == {**trained, "responses_per_prompt": 1, "temperature": 0.5}
    named = plan(*load("try_again", overrides=["evaluate.rollout={name: sample}"]))
    assert named["answers_policy"].options["rollout"]["name"] == "sample"
    assert plan(*load("ppo"))["answers_policy"].options["rollout"]["name"] == "sample"
    arms = "evaluate.arms={policy: {}, once: {rollout: {name: sample}}}"
    own = plan(*load("try_again", overrides=[arms]))
    assert [own[f"answers_{n}"].options["rollout"]["name"] for n in ("policy", "once")] == [
        "episodes",
        "sample",
    ]


def test_a_policy_that_learns_from_logged_episodes_is_evaluated_by_its_own() -> None:
    stages = plan(*load("wsrl_retained", overrides=["evaluate={arms: null, rollout: null}", "claim=null"]))
    rollout = stages["answers_policy"].options["rollout"]
    assert (rollout["name"], rollout["turns"], rollout["max_length"]) == ("episodes", 10, 160)
    assert rollout["environment"]["name"] == "maze"


def test_a_name_that_two_slots_share_is_in_the_keys_of_both() -> None:
    """The objective `kl` and the measure `kl`: an edit of either must move the keys of its users. Health
    rules are keys of `health`, not specs.
    """
    slots = [slot for slot in SLOTS if slot != "health"]
    shared = [name for name, count in Counter(n for s in slots for n in catalogue(s)).items() if count > 1]
    assert "kl" in shared
    for name in shared:
        modules = {catalogue(slot)[name].module for slot in slots if name in catalogue(slot)}
        assert modules <= {module for module, _ in starts("improve", {"select": [{"name": name}]})}
    ill = starts("improve", {"health": {"entropy": {"limit": 1.0, "action": "warn"}}})
    assert ("ratchet.components.pieces.health.entropy", "entropy") in ill


def test_the_order_of_splits_is_in_the_key_of_their_curation() -> None:
    """Of two near duplicates that of the later split goes, so two orders make two data sets."""
    recipe, profile = load("online_dpo")
    splits = recipe.data.splits
    assert splits and len(splits) > 1
    other = replace(recipe, data=replace(recipe.data, splits=dict(reversed(splits.items()))))
    keys = [plan(one, profile)["drafts"].key for one in (recipe, other, recipe)]
    assert keys[0] != keys[1] and keys[0] == keys[2]
