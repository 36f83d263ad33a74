"""What decides on a result is independent of its training: scores, and prompts."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from ratchet.components.errors import RecipeError
from ratchet.components.recipes.check_data import check_files
from ratchet.components.recipes.plan import plan
from ratchet.components.recipes.recipe import load
from ratchet.components.recipes.schema import Recipe

MINE = {"name": "rewards.reward_model", "model": "mine"}
GAIN = {"reward.mine_gain_vs_base": {"over": 0.0, "interval": True}}


def loaded(tmp_path: Path, base: str, **changes: Any) -> Recipe:
    file = tmp_path / "mine.yaml"
    file.write_text(
        yaml.safe_dump({"schema": 1, "base": base, "about": "a test", **changes}, sort_keys=False)
    )
    return load(file)[0]


def scored_by_mine(section: str, changes: dict[str, Any], gates: dict[str, Any]) -> dict[str, Any]:
    return {
        "models": {"mine": {"source": "hub:org/model", "role": "reward"}},
        "evaluate": {"metrics": [MINE]},
        "register": {"gates": gates},
        section: changes,
    }


BEST_OF_N = {
    "demonstrate": {
        "annotate": [MINE],
        "sft": [{"name": "best_of_n", "reward": "reward.mine"}],
        "reward": None,
    },
    "preferences": None,
    "reward": None,
    "offline": None,
    "online": None,
    "data": {"splits": {"preferences": None, "preferences_validation": None, "prompts": None}},
    "models": {"mine": {"source": "hub:org/model", "role": "reward"}},
}
NO_GATES = dict.fromkeys(
    [
        *(
            f"{name}_vs_base"
            for name in ("copying", "distinct_2_ratio", "ending", "fluency", "personal_data")
        ),
        *("relevance_vs_base", "repetition_vs_base", "reward.instructions_gain_vs_base"),
        "reward.instructions_gain_vs_sft",
    ]
)


def best_of_n(tmp_path: Path, gates: dict[str, Any] | None, **splits: float) -> Recipe:
    return loaded(
        tmp_path,
        "instruct",
        **{
            **BEST_OF_N,
            "data": {"splits": {**BEST_OF_N["data"]["splits"], **splits}},
            "evaluate": {"metrics": [MINE], "measures": [], "by": []},
            "register": None if gates is None else {"gates": {**NO_GATES, **gates}},
        },
    )


def test_a_reward_model_that_chooses_the_demonstrations_is_optimised(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"gates\.reward\.mine_gain_vs_base: the policy is optimised ag"):
        best_of_n(tmp_path, GAIN, reward_validation=0.1)
    with pytest.raises(RecipeError, match=r"models\.mine: no held-out pairs to certify"):
        best_of_n(tmp_path, None)


def test_it_is_certified_before_it_scores_the_demonstrations(tmp_path: Path) -> None:
    recipe = best_of_n(tmp_path, None, reward_validation=0.1)
    stages = plan(recipe, load("sft")[1])
    assert stages["certified_mine"].inputs == {"model": "model_mine", "data": "curated"}
    assert stages["demonstrated"].inputs["mine_certificate"] == "certified_mine"
    assert list(stages).index("certified_mine") < list(stages).index("demonstrated")


def test_a_reward_model_in_prepare_is_optimised(tmp_path: Path) -> None:
    online = {
        "prepare": [MINE, {"name": "advantages.group_norm", "reward": "reward.mine"}],
        "fit": {"updates": {"policy": [{"name": "reinforce"}]}},
    }
    changes = {**scored_by_mine("online", online, GAIN), "reward": None, "data": {"splits": {"reward": None}}}
    with pytest.raises(RecipeError, match=r"gates\.reward\.mine_gain_vs_base"):
        loaded(tmp_path, "online", **changes)


LEARNED = {"name": "rewards.reward_model", "model": "reward_model"}
EVALUATE = {
    "arms": {"base": {"model": "base"}, "policy": {}},
    "responses_per_prompt": 4,
    "metrics": [LEARNED, "rewards.sentiment"],
    "measures": [
        {"name": "pass_at_k", "reward": "reward.reward_model", "k": 4, "at_least": 0.0},
        {"name": "pair_accuracy", "truth": "reward.sentiment"},
    ],
}
ENDS = {"arm": "policy", "other": "base"}


@pytest.mark.parametrize(
    ("gate", "report"),
    [
        ("gap", {"name": "gap", **ENDS, "measure": "reward.reward_model"}),
        ("gap", {"name": "gap", **ENDS, "measure": "pass_at_k"}),
        ("rises", {"name": "gap", "label": "rises", **ENDS, "measure": "reward.reward_model"}),
        ("pass_at_k_vs_base.low", None),
        ("final.pass_at_k", None),
        ("policy.pass_at_k", None),
    ],
)
def test_a_number_of_an_optimised_reward_model_is_no_gate(tmp_path: Path, gate: str, report: Any) -> None:
    evaluate = {**EVALUATE, "reports": [report] if report else []}
    with pytest.raises(
        RecipeError, match=rf"gates\.{gate}: the policy is optimised against .*'reward_model'"
    ):
        loaded(tmp_path, "online_dpo", evaluate=evaluate, register={"gates": {gate: {"over": 0.0}}})
    loaded(tmp_path, "online_dpo", evaluate=evaluate, register={"gates": {gate: {"below": 0.9}}})


def test_comparing_an_optimised_reward_model_with_a_verifier_may_be_a_gate(tmp_path: Path) -> None:
    regret = {"name": "regret", "of": "reward.reward_model", "to": "reward.sentiment"}
    gap = {"name": "gap", **ENDS, "measure": "reward.sentiment"}
    gates = {name: {"over": -1.0} for name in ("regret", "gap", "final.pair_accuracy")}
    evaluate = {**EVALUATE, "reports": [regret, gap]}
    recipe = loaded(tmp_path, "online_dpo", evaluate=evaluate, register={"gates": gates})
    assert recipe.register and gates.keys() <= recipe.register.gates.keys()


TRIES = {
    "does": "groups",
    "data": "prompts",
    "rollout": {"name": "sample", "responses_per_prompt": 2, "max_tokens": 8},
    "annotate": ["rewards.sentiment"],
    "select": [{"name": "best_worst", "reward": "reward.sentiment"}],
}
JUDGE = {"does": "reward", "fit": {"updates": {"reward_model": ["ranking.bradley_terry"]}}}


@pytest.mark.parametrize(
    ("base", "changes", "message"),
    [
        (
            "reward_model",
            {"reward": {"validation": "reward"}},
            "reward.validation: got 'reward', which reward.data trains on; expected held-out groups",
        ),
        (
            "online_dpo",
            {"reward": {"also": "reward_validation"}},
            "reward.validation: got 'reward_validation', which reward.also trains on",
        ),
        (
            "online_dpo",
            {"reward": {"also": "reward"}},
            "reward.also: got 'reward', which is reward.data already",
        ),
        (
            "dpo",
            {
                "phases": {"tries": TRIES, "judge": {**JUDGE, "data": "tries", "validation": "tries"}},
                "data": {"splits": {"prompts": 0.2}},
            },
            "phases.judge.validation: got 'tries', which phases.judge.data trains on",
        ),
        (
            "online_dpo",
            {"online": {"data": "evaluate"}},
            "online.data: got 'evaluate', on which the policy is evaluated; expected another split",
        ),
        (
            "online_dpo",
            {"evaluate": {"data": "prompts"}},
            "online.data: got 'prompts', on which the policy is",
        ),
    ],
)
def test_what_decides_is_held_out(tmp_path: Path, base: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError, match=re.escape(message)):
        loaded(tmp_path, base, **changes)


def test_training_on_the_evaluated_prompts_is_a_warning_where_nothing_is_registered(tmp_path: Path) -> None:
    recipe = loaded(tmp_path, "online_dpo", online={"data": "evaluate"}, register=None)
    assert any("online.data: got 'evaluate'" in warning for warning in check_files(recipe).warnings)
    arms = {
        "base": {"model": "base"},
        "learnt": {"data": "prompts"},
        "policy": {},
    }
    loaded(tmp_path, "online_dpo", evaluate={"arms": arms}, register={"gates": {"final.length": {"over": 1}}})
    with pytest.raises(RecipeError, match=r"online\.data: got 'prompts', on which"):
        loaded(
            tmp_path,
            "online_dpo",
            evaluate={"arms": arms},
            register={"gates": {"learnt.length": {"over": 1}}},
        )


def test_a_reward_model_of_one_round_is_optimised_and_certified(tmp_path: Path) -> None:
    second = {"annotate": [MINE], "select": [{"name": "best_worst", "reward": "reward.mine"}]}
    changes = scored_by_mine("online", {"by_round": {"2": second}}, GAIN)
    with pytest.raises(RecipeError, match=r"gates\.reward\.mine_gain_vs_base: the policy is optimised ag"):
        loaded(tmp_path, "online_dpo", **changes)
    stages = plan(loaded(tmp_path, "online_dpo", **{**changes, "register": None}), load("sft")[1])
    assert stages["annotate_2"].inputs["mine_certificate"] == "certified_mine"
    assert "mine" not in stages["annotate_1"].inputs


def test_a_reward_model_that_chooses_tokens_is_optimised(tmp_path: Path) -> None:
    decoding = {"name": "transfer_q", "reward": MINE, "max_tokens": 8, "aligned": "base"}
    changes = {
        "models": {"mine": {"source": "hub:org/model", "role": "reward"}},
        "evaluate": {
            "arms": {"base": {"model": "base"}, "policy": {"rollout": decoding}},
            "metrics": [MINE],
        },
        "register": {"gates": GAIN},
    }
    with pytest.raises(RecipeError, match=r"gates\.reward\.mine_gain_vs_base: the policy is optimised ag"):
        loaded(tmp_path, "online_dpo", **changes)
