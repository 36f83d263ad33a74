"""`ratchet recipes list` and what it reads: families, stored verdicts; `ratchet recipes pieces`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ratchet.components.errors import RecipeError
from ratchet.components.piece import SLOTS, catalogue
from ratchet.components.recipes import plan
from ratchet.components.recipes.plain_values import plain
from ratchet.components.recipes.recipe import load, names, written
from ratchet.flows import claim_records
from ratchet.flows.catalogue import family
from ratchet.flows.claim_records import claiming, read
from ratchet.flows.claims import check_claims
from ratchet.flows.cli import app
from ratchet.flows.piece_catalogue import NAMED_IN, headline, lines_of, pieces_of
from ratchet.flows.recipe_pieces import equations, options_of, pieces, pieces_in
from tests.shipped import shipped_recipe


def test_the_list_plans_nothing_and_has_the_stored_verdicts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(claim_records, "key_of", lambda *_: pytest.fail("computed the keys of a claim"))
    monkeypatch.setattr(plan, "plan", lambda *_: pytest.fail("planned a recipe"))
    rows = json.loads(CliRunner().invoke(app, ["recipes", "list", "--json"], catch_exceptions=False).output)
    shown = {row["recipe"]: row["verdict"] for row in rows}
    stored = read()
    assert stored and {name: shown[name] for name in stored} == {n: v.verdict for n, v in stored.items()}
    assert shown["dpo"] == "", "it claims nothing"


@pytest.mark.parametrize("name", ["rloo", "vpl", "instruct", "chat", "upscaling", "sentiment_people"])
def test_a_recipe_as_written_has_the_family_and_the_claim_of_the_loaded_one(name: str) -> None:
    early, late = written()[name], load(name)[0]
    assert (family(early), early.about, early.paper) == (family(late), late.about, late.paper)
    assert early.claim == late.claim


def test_a_reward_learned_by_a_phase_is_reward_modelling() -> None:
    """`vpl` learns a reward over the policy's backbone by an objective that reads no log-probs."""
    recipes = written()
    assert family(recipes["vpl"]) == family(recipes["vpl_plain"]) == "Reward modelling"
    assert family(recipes["label_small_margins"]) == "Reward modelling", "in a measure of its evaluation"
    assert (
        family(recipes["sft"])
        == family(recipes["ift"])
        == family(recipes["rlgf_guide"])
        == "Supervised fine-tuning"
    )


def test_pairs_that_are_all_sampled_before_learning_are_offline_preference_learning() -> None:
    recipes = written()
    for name in ("sentiment_dpo", "code_ultrafeedback", "dpo", "sentiment_ipo"):
        assert family(recipes[name]) == "Offline preference learning", name
    assert family(recipes["iterative_dpo"]) == "Online preference learning, in rounds"


def test_a_recipe_without_a_claim_is_refused_without_loading_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(claim_records, "load", lambda name, **more: loaded.append(name) or load(name, **more))
    assert "rloo" in claiming() and not loaded
    with pytest.raises(RecipeError, match="dpo claims nothing"):
        check_claims(["dpo"], home=tmp_path)


def test_pieces_without_a_slot_are_the_slots_with_their_numbers() -> None:
    assert list(NAMED_IN) == list(SLOTS)
    shown = CliRunner().invoke(app, ["recipes", "pieces"], catch_exceptions=False).output
    assert f"{len(catalogue('objective'))}  fit.updates of a section" in shown


def test_pieces_of_a_slot_have_their_options_with_defaults() -> None:
    shown = CliRunner().invoke(app, ["recipes", "pieces", "adapter"], catch_exceptions=False).output
    assert "lora: W + (alpha / rank) B A on every linear layer" in shown
    assert "    rank: Count = 16, alpha: Positive = 32.0, dora: Bool = False" in shown
    assert "full: The model with all parameters trainable.\nhalf: " in shown, "a piece without options"
    assert "target: Positive (required), initial: Positive = 0.2" in list(lines_of("schedule"))[1]
    rows = json.loads(CliRunner().invoke(app, ["recipes", "pieces", "objective", "--json"]).output)
    assert rows["clip"]["options"]["low"] == {"type": "Share", "default": 0.2}


def test_pieces_of_a_folder_are_those_of_the_slot_that_lie_in_it() -> None:
    assert list(pieces_of("rewards")) == [
        name for name in catalogue("annotate") if name.startswith("rewards.")
    ]
    with pytest.raises(RecipeError, match="'objectve'; did you mean 'objective'"):
        pieces_of("objectve")


def test_the_headline_of_a_piece_is_its_first_sentence() -> None:
    assert headline(catalogue("objective")["clip"]) == "PPO's clipped surrogate (eq. 7), one term per step."
    assert "Dr. GRPO" in headline(catalogue("annotate")["advantages.centre"])
    assert not [name for slot in SLOTS for name, one in catalogue(slot).items() if not headline(one)]


@pytest.mark.parametrize(
    "name, first, formula",
    [
        ("transfer_q", "transfer_q", "p(z | s) exp(Q(s, z) / alpha)"),
        ("controlled_decoding", "transfer_q", "p(z | s) exp(Q(s, z) / alpha)"),
        ("ensemble_uncertainty", "rewards.ensemble", "mean - `uncertainty` x variance over i"),
        ("spo", "rewards.win_rate", "1 / (G - 1) x sum over j != i of P(y_i > y_j)"),
        ("interpolation", "sharpness", "L(theta + delta) - L(theta)"),
        ("half", "half", "theta + M (theta' - theta)"),
        ("dpo", "preference.dpo", "-log sigmoid(beta z), with z = log pi/ref"),
        ("heron", "hierarchy", "the first signal of `signals` that differs by more than its margin"),
    ],
)
def test_the_methods_own_equation_comes_first(name: str, first: str, formula: str) -> None:
    shown = equations(shipped_recipe(name)[0])
    assert next(iter(shown)) == first and formula in shown[first]


def test_objectives_and_the_advantages_they_read_follow_the_methods_own_pieces() -> None:
    assert list(equations(shipped_recipe("spo")[0]))[1:] == ["reinforce", "advantages.leave_one_out"]
    assert list(equations(shipped_recipe("reward_robust")[0]))[:3] == [
        "rewards.reward_model",
        "rewards.ensemble",
        "rewards.combine",
    ], "no piece has its paper: what its file names, and its base does not"


@pytest.mark.parametrize("name", [name for name in names() if shipped_recipe(name)[0].claim])
def test_every_recipe_with_a_claim_has_an_equation(name: str) -> None:
    assert equations(shipped_recipe(name)[0])


def test_a_name_of_two_slots_is_the_piece_of_the_key_that_has_it() -> None:
    """`kl` is an objective, a measure and a health rule; `uniform` selects pairs, or draws prompts."""
    named = pieces_in(plain(shipped_recipe("label_uniform")[0].evaluate))
    assert ("select", "uniform") in {(one.slot, name) for name, one, _ in named}
    superhf = shipped_recipe("superhf")[0]
    assert "k3 = exp(-d) - 1 + d" in equations(superhf)["kl"] and "kl (arXiv:2402.03300)" in pieces(superhf)
    assert ("estimator", "k3") in [option[:2] for option in options_of(superhf)["kl"][0]]
