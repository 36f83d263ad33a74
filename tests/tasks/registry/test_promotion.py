"""Promotion to champion: statistical evidence, manual decisions, rollback."""

from __future__ import annotations

import os
import random

import numpy as np
import pytest

from ratchet.components.errors import ContractError, RecipeError, StoreError
from ratchet.components.recipes.plan import plan
from ratchet.components.recipes.recipe import dump, load
from ratchet.components.recipes.schema_evaluation import Champion
from ratchet.tasks.registry.promotion import against_champion, promote_by_hand, rollback, spent, with_evidence
from ratchet.tasks.registry.registry import ensure_files, promote, register
from ratchet.tasks.registry.versions import champion, events, history, saved_lineage
from ratchet.tasks.tracking import results
from ratchet.tasks.tracking.results import paired_difference, shared_scores, why_not_comparable
from ratchet.tasks.tracking.server import client

PASSED, FAILED = (
    {"passed": True, "reasons": ["win rate 0.6 > 0.5"]},
    {"passed": False, "reasons": ["tax 1.4 > 1.3"]},
)


def evaluation(gold: list[float], **more):
    return {
        "metrics": {},
        "per_prompt": {"gold": gold, "length": [1.0] * len(gold)},
        "prompts": "p",
        "answers": {"max_tokens": 8},
        "scorers": {"gold": "g", "length": "l"},
        **more,
    }


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("promotion")


@pytest.fixture
def version(home, tmp_path, monkeypatch):
    """version("1", lift=0.1) -> the number of a registered version whose gold scores lie that much higher."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    rng = random.Random(0)
    base = [rng.gauss(0, 1) for _ in range(60)]

    def make(text: str, lift: float = 0.0, resolved: str = "", **more) -> str:
        folder = tmp_path / text
        folder.mkdir()
        (folder / "model.safetensors").write_text(text + tmp_path.name)
        found = evaluation([b + lift + rng.gauss(0, 0.2) for b in base], **more)
        return register(
            folder, tmp_path.name, lineage={"results": found, "data": {}, "resolved": resolved}, home=home
        )

    return make


def test_error_rate_over_all_challengers_is_bounded():
    assert spent(1) == pytest.approx(0.025) and spent(2) < spent(1)
    assert sum(spent(k) for k in range(1, 10_000)) < 0.05


def test_automatic_promotion_needs_evidence_and_manual_needs_a_reason(version, home, tmp_path):
    name, first = tmp_path.name, version("first")
    assert (
        against_champion(name, first, home=home) is None
        and with_evidence(name, first, PASSED, home=home) == PASSED
    )
    assert promote(name, first, with_evidence(name, first, PASSED, home=home), home=home)

    equal = version("equal")
    verdict = with_evidence(name, equal, PASSED, home=home)
    assert (
        verdict["passed"] and not verdict["champion"] and "not shown to be better" in verdict["reasons"][-1]
    )
    assert not promote(name, equal, verdict, home=home)
    again = against_champion(name, equal, home=home)
    assert again is not None and again.number == 1, "asking again spends nothing"

    better = version("better", lift=0.5)
    found = against_champion(name, better, home=home)
    assert (
        found is not None
        and found.better
        and found.number == 2
        and found.level == 1 - spent(2)
        and found.n == 60
    )
    assert promote(name, better, with_evidence(name, better, PASSED, home=home), home=home)

    with pytest.raises(ContractError, match=r"--force"):
        promote(name, (worse := version("worse", lift=-0.5)), FAILED, home=home)
        promote_by_hand(name, worse, "I like it", home=home)
    with pytest.raises(ContractError, match="reason"):
        promote_by_hand(name, worse, " ", force=True, home=home)
    assert champion(name, home=home).version == better
    _, _, overruled = promote_by_hand(name, worse, "the gate is wrong", force=True, home=home)
    assert len(overruled) == 2
    last = events(champion(name, home=home))[-1]
    assert (last["why"], last["replaced"], last["by_hand"], last["overruled"]) == (
        "the gate is wrong",
        better,
        True,
        overruled,
    )
    assert last["by"] and last["at"]


def test_recipe_sets_score_and_error_rate_of_the_comparison(version, home, tmp_path):
    name, first = tmp_path.name, version("first")
    assert promote(name, first, PASSED, home=home)
    strict = Champion(score="length", alpha=0.01)
    text = dump(*load("sft", overrides=["register.champion={score: length, alpha: 0.01}"]))
    better = version("better", lift=0.5, resolved=text)
    for rule in (
        strict,
        None,
    ):  # handed over by the pipeline, or read from the version by a person's promotion
        found = against_champion(name, better, rule=rule, home=home)
        assert found is not None and (found.score, found.level) == ("length", 1 - 0.005) and not found.better
    assert not with_evidence(name, better, PASSED, rule=strict, home=home)["champion"]
    assert with_evidence(name, better, PASSED, rule=Champion(), home=home)["champion"], (
        "by the gold measure it is better"
    )
    comparison = against_champion(name, better, rule=Champion(score="gold", alpha=0.01), home=home)
    assert comparison is not None and comparison.better and comparison.level == 1 - spent(2, 0.01)


def test_a_user_without_a_name_can_promote(version, home, tmp_path, monkeypatch):
    for variable in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(variable, raising=False)

    def unknown(uid):
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.setattr("pwd.getpwuid", unknown)
    assert promote(tmp_path.name, version("first"), PASSED, home=home)
    assert events(champion(tmp_path.name, home=home))[-1]["by"] == str(os.getuid())


def test_another_evaluation_is_another_comparison(version, home, tmp_path):
    name, first = tmp_path.name, version("first")
    assert promote(name, first, PASSED, home=home)
    second = version("second", lift=0.5)
    before = against_champion(name, second, home=home)
    assert before == against_champion(name, second, home=home) and before.number == 1
    lineage = saved_lineage(history(name, home=home)[-1], home=home)
    lineage["results"]["per_prompt"]["gold"] = [0.0] * 50
    assert register(tmp_path / "second", name, lineage=lineage, home=home) == second
    found = against_champion(name, second, home=home)
    assert (found.number, found.n, found.better) == (2, 50, False)
    assert against_champion(name, second, home=home) == found, "asking again spends nothing"


def test_a_version_without_evaluation_can_be_promoted_by_force(version, home, tmp_path):
    name, first = tmp_path.name, version("first")
    assert promote(name, first, PASSED, home=home)
    resolved = dump(*load("sft", overrides=["evaluate=null", "claim=null"]))
    other = version("other", resolved=resolved)
    found = against_champion(name, other, home=home)
    assert found is not None and found.score == "gold"
    assert promote_by_hand(name, other, "needed now", force=True, home=home)[0] == other


def test_deleting_a_challenger_gives_no_further_chance(version, home, tmp_path):
    name, first = tmp_path.name, version("first")
    assert promote(name, first, PASSED, home=home)
    lost = version("lost", lift=-0.5)
    assert against_champion(name, lost, home=home)
    client(home).delete_model_version(name, lost)
    again = version("again", lift=-0.5)
    for _ in range(2):
        found = against_champion(name, again, home=home)
        assert found is not None and found.number == 2 and found.level == 1 - spent(2)


def test_champion_options_are_validated_and_change_only_the_report():
    for wrong, message in (
        ("{alpha: 0}", "register.champion.alpha: expected a number above 0, got 0"),
        ("{alfa: 0.1}", "did you mean 'alpha'"),
        (
            "{score: reward.reward_model}",
            "register.champion.score: .* 'reward.reward_model'.*did you mean|known",
        ),
    ):
        with pytest.raises(RecipeError, match=message):
            load("sft", overrides=[f"register.champion={wrong}"])
    plain, changed = (
        plan(*load("sft", overrides=more))
        for more in ([], ["register.champion={score: length, alpha: 0.01}"])
    )
    assert {name for name in plain if plain[name].key != changed[name].key} <= {"evaluate"}, (
        "the report alone shows it"
    )


def test_rollback_restores_previous_champions_and_persists(version, home, tmp_path):
    name = tmp_path.name
    one, two, three = (version(t, lift=lift) for t, lift in (("one", 0.0), ("two", 0.5), ("three", 1.0)))
    with pytest.raises(StoreError, match="no champion"):
        rollback(name, "nothing there", home=home)
    for number in (one, two, three):
        assert promote(name, number, with_evidence(name, number, PASSED, home=home), home=home)
    assert rollback(name, "it swears", home=home) == (three, two)
    assert rollback(name, "this one too", home=home) == (two, one)
    with pytest.raises(StoreError, match="replaced no"):
        rollback(name, "and this", home=home)
    assert champion(name, home=home).version == one
    assert not promote(name, three, PASSED, home=home), "a run that registers again must not undo a rollback"
    with pytest.raises(ContractError, match=r"it swears"):
        promote_by_hand(name, three, "again", home=home)
    promote_by_hand(name, three, "the filter is in place now", force=True, home=home)
    assert champion(name, home=home).version == three
    actions = [
        e["action"]
        for e in events({v.version: v for v in history(name, home=home)}[two])
        if e["alias"] == "champion"
    ]
    assert actions == ["promoted", "replaced", "rolled back to", "replaced"]


def test_a_rollback_to_a_version_that_is_gone_changes_nothing(version, home, tmp_path):
    name = tmp_path.name
    one, two = version("one"), version("two", lift=0.5)
    for number in (one, two):
        assert promote(name, number, with_evidence(name, number, PASSED, home=home), home=home)
    client(home).delete_model_version(name, one)
    before = champion(name, home=home)
    with pytest.raises(StoreError, match=f"{one}"):
        rollback(name, "it swears", home=home)
    assert champion(name, home=home) == before, "marked as rolled back, and yet champion"


def test_decoding_of_the_final_arm_must_be_the_same():
    """Best of 16 or greedy sampling is not compared with plain sampling; the number of answers may differ."""

    def answers(best_of=None, **rollout):
        arm = {
            "data": "evaluate",
            "rollout": {"name": "sample", "temperature": 1.0, **rollout},
            "best_of": best_of,
        }
        found = results._answered({"arms": {"policy": arm}, "named": False})
        return {name: found.get(name) for name in results.CONDITIONS}

    plain = answers(responses_per_prompt=2)
    assert plain == answers(responses_per_prompt=4)
    assert plain not in (answers({"n": 16}), answers(top_k=1), answers(top_p=0.1))


def test_scores_by_other_options_or_models_are_of_another_scorer():
    exact, judge = {"name": "rewards.exact_answer"}, {"name": "rewards.reward_model", "model": "judge"}
    both = {"name": "rewards.combine", "rewards": ["reward.judge", "reward.exact_answer"]}

    def scorer(score, *measures, answers=4, judge_is="j"):
        rollout = {"name": "sample", "responses_per_prompt": answers}
        arms = {"policy": {"data": "evaluate", "rollout": rollout, "best_of": None}}
        options = {"metrics": [exact, judge, both], "measures": measures, "arms": arms}
        return results._scorer(score, {"judge": judge_is}, options)

    one, four = ({"name": "pass_at_k", "reward": "reward.exact_answer", "k": k} for k in (1, 4))
    combined = {"name": "pass_at_k", "label": "voted", "reward": "reward.combined"}
    assert scorer("pass_at_k", one) == scorer("pass_at_k", one, judge_is="other")
    assert scorer("pass_at_k", one) != scorer("pass_at_k", four)
    assert scorer("voted", combined) not in (
        scorer("voted", combined, answers=16),
        scorer("voted", combined, judge_is="other"),
    )
    assert scorer("reward.combined") != scorer("reward.combined", judge_is="other")
    assert scorer("reward.combined") == scorer("reward.combined", one, answers=16)
    assert scorer("reward.exact_answer") == scorer("reward.exact_answer", judge_is="other")
    by_model = {"name": "pass_at_k", "reward": "reward.learned"}
    options = {"measures": [by_model], "reward_models": ["learned"]}
    assert results._scorer("pass_at_k", {"learned": "1"}, options) not in (
        results._scorer("pass_at_k", {"learned": "2"}, options),
        "",
    )
    assert results._scorer("voted", {}, {"metrics": [judge, both], "measures": [combined]}) == ""


def test_comparable_gives_the_reason():
    mine = evaluation([1.0, 2.0])
    assert why_not_comparable(mine, evaluation([0.0]), "gold") == "" and shared_scores(
        mine, evaluation([0.0])
    ) == [
        "gold",
        "length",
    ]
    for other, why in (
        (evaluation([1.0], prompts="q"), "prompts differ"),
        (evaluation([1.0], prompts=""), "no longer available"),
        (evaluation([1.0], answers={"max_tokens": 9}), "settings differ"),
        ({}, "has no gold"),
        (evaluation([1.0], scorers={"gold": "h"}), "different scorers"),
    ):
        assert why in why_not_comparable(mine, other, "gold")
    assert (
        paired_difference(mine, evaluation([0.0, 1.0, 7.0]), "gold")["mean"] == 1.0
    )  # of the prompts both answered


def test_few_prompts_give_a_wider_interval_of_the_difference() -> None:
    """Of challengers that are no better, no more than the level says look better, also on eight prompts: the
    first of a champion is compared at 97.5 %, and 4 % of its percentile intervals lay above 0.
    """
    rng, better = np.random.default_rng(0), 0
    for _ in range(2000):
        gains = rng.normal(size=8)
        if gains.mean() > 1.5 * gains.std() / 8**0.5:  # the others cannot
            interval = paired_difference(evaluation([*gains]), evaluation([0.0] * 8), "gold", level=0.975)
            better += interval["low"] > 0
    assert 0.004 < better / 2000 < 0.02


def test_the_reward_that_training_raised_does_not_decide(version, home, tmp_path):
    """Without a score in the recipe, the first one that the run did not optimise decides, and no measure."""
    resolved = dump(*load("online_dpo", profile="test"))
    style = {"reward.style": [0.0, 1.0] * 30}
    raised = {"copying": [0.9] * 60, "reward.reward_model": [9.0] * 60, **style}
    lowest = {"copying": [0.1] * 60, "reward.reward_model": [0.0] * 60, **style}
    same = {
        "scorers": {"copying": "c", "reward.reward_model": "r", "reward.style": "s"},
        "resolved": resolved,
    }
    assert promote(tmp_path.name, version("first", per_prompt=lowest, **same), PASSED, home=home)
    found = against_champion(tmp_path.name, version("second", per_prompt=raised, **same), home=home)
    assert found is not None and found.score == "reward.style" and not found.better
    unreadable = version("third", per_prompt=raised, **same | {"resolved": "recipe: {}\nprofile: {}\n"})
    found = against_champion(tmp_path.name, unreadable, home=home)
    assert found is not None and "has no gold" in found.why_not


def test_few_prompts_do_not_promote(version, home, tmp_path):
    assert promote(tmp_path.name, version("first"), PASSED, home=home)
    few = version("few", lift=9.0, per_prompt={"gold": [99.0] * 4})
    found = against_champion(tmp_path.name, few, home=home)
    assert found is not None and found.low > 0 and not found.better


def test_external_checkpoint_is_registered_with_its_files_or_an_error(version, home, tmp_path):
    name, first = tmp_path.name, version("first")
    promote(name, first, PASSED, home=home)
    folder = tmp_path / "round 2"
    folder.mkdir()
    (folder / "model.safetensors").write_text("round 2" + name)
    lineage = {"recipe": "chat", "data": {"pairs": "d"}}
    middle = register(
        folder,
        name,
        lineage=lineage,
        metrics={"optimise.steps": 8.0},
        parents={"sft": f"{name}:{first}"},
        external=True,
        home=home,
    )
    before = history(name, home=home)
    with pytest.raises(ContractError, match=f"version {middle}"):
        promote_by_hand(name, middle, "round 3 talks too much", home=home)
    assert history(name, home=home) == before, "refused, and yet copied"
    number, _, overruled = promote_by_hand(name, middle, "round 3 talks too much", force=True, home=home)
    crowned = champion(name, home=home)
    assert overruled and crowned and number == crowned.version != middle and not crowned.external
    assert saved_lineage(crowned, home=home) == lineage
    assert (
        crowned.tags["metric.optimise.steps"] == "8.0" and crowned.tags["parent.sft"] == f"{name}:{first}"
    ), "`ratchet gc --best` ranks by them"
    assert ensure_files(name, middle, home=home) == number, "asked again, the same one"
    (folder / "model.safetensors").write_text("another")
    other = register(folder, name, lineage=lineage, external=True, home=home)
    (folder / "model.safetensors").write_text("a third")
    with pytest.raises(StoreError, match="ratchet reproduce"):
        promote_by_hand(name, other, "it was good", force=True, home=home)
    assert rollback(name, "round 3 it is", home=home) == (number, first)
