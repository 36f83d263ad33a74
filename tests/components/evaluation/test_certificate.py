"""Reward model certificate: hand-computed values, scikit-learn's calibration, and every reason to fail."""

import json
import re

import numpy as np
import pytest
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss

from ratchet.components.errors import ContractError, DataError, RecipeError
from ratchet.components.evaluation.best_of_n import best_of_n
from ratchet.components.evaluation.certificate import accuracy_by_kind, certify, require
from ratchet.components.evaluation.certificate_statistics import (
    accuracy,
    calibration,
    conversations_of,
    effective_trials,
    independent,
    length_bias,
    prompts_of,
    share,
)
from ratchet.components.types import Group, Prompt, Trajectory


def certificate_of(scores, lengths=None, **changes):
    scores = np.asarray(scores, float)
    lengths = np.tile([10.0, 9.0], (len(scores), 1)) if lengths is None else lengths
    return certify(scores=scores, lengths=lengths, **{"trained": scores[:2], "alone": scores[:2], **changes})


def honest(n=4000, seed=0):
    """Pairs whose chosen side was drawn with probability σ(Δ): perfectly calibrated by construction."""
    rng = np.random.default_rng(seed)
    delta = rng.normal(scale=1.5, size=n)
    return np.where(rng.random(n) < expit(delta), delta, -delta)


def test_certificate_values_match_a_hand_computation():
    certificate = certificate_of([[2, 1], [0, 1], [1, 1], [3, 0]])
    assert certificate["accuracy"]["mean"] == pytest.approx(2.5 / 4)
    assert certificate["ties"] == 0.25
    brier = np.mean([(1 - expit(d)) ** 2 for d in (1, -1, 0, 3)])
    assert certificate["brier"] == pytest.approx(brier)
    assert certificate["brier"] == pytest.approx(brier_score_loss([1] * 4, expit([1, -1, 0, 3])))
    assert not certificate["passed"] and [reason.split(" is ")[0] for reason in certificate["reasons"]] == [
        "held-out accuracy",
        "share of tied pairs",
    ]
    json.dumps(certificate)


def test_calibration_error_of_calibrated_and_overconfident_scores():
    deltas = honest()
    error, bins = calibration(deltas)
    assert error < 0.03 and sum(b["pairs"] for b in bins) == len(deltas)
    loud, _ = calibration(5 * deltas)
    assert loud > 0.1
    hand, table = calibration(
        np.array([np.log(3), np.log(3), np.log(3), -np.log(3)])
    )  # says 75 %, is right 3 of 4 times
    assert hand == pytest.approx(0, abs=1e-12) and table == [
        {"confidence": pytest.approx(0.75), "accuracy": 0.75, "pairs": 4}
    ]


def test_length_biased_reward_model_is_detected():
    rng = np.random.default_rng(0)
    lengths = rng.integers(5, 60, size=(600, 2)).astype(float)
    gaps = np.log1p(lengths[:, 0]) - np.log1p(lengths[:, 1])
    counting = length_bias(gaps * 3, lengths)
    assert counting["spearman"] == pytest.approx(1) and counting["pearson"] == pytest.approx(1)
    assert counting["controlled"]["mean"] == pytest.approx(0.5, abs=0.06)
    fair = length_bias(rng.normal(1, 1, 600), lengths)
    assert abs(fair["pearson"]) < 0.1 and fair["controlled"]["mean"] > 0.75 and fair["matched"]["n"] < 600
    assert fair["longer_preferred"] == accuracy(gaps)


@pytest.mark.parametrize("seed", range(4))
def test_scores_that_are_only_length_are_ties_once_length_is_taken_out(seed):
    """Not a share of the signs of their rounding errors."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(5, 60, (200, 2)).astype(float)
    longer_first = np.sort(lengths, 1)[:, ::-1]
    lengths = np.where((rng.random(200) < 0.75)[:, None], longer_first, np.sort(lengths, 1))
    gaps = np.log1p(lengths[:, 0]) - np.log1p(lengths[:, 1])
    for factor in (1.0, 0.3, 0.37):
        assert length_bias(factor * gaps, lengths)["controlled"]["mean"] == 0.5


def test_swapping_every_pair_mirrors_accuracy_and_keeps_correlation():
    rng = np.random.default_rng(1)
    deltas, lengths = rng.normal(size=50), rng.integers(1, 30, size=(50, 2)).astype(float)
    ours, mirrored = length_bias(deltas, lengths), length_bias(-deltas, lengths[:, ::-1])
    assert ours["pearson"] == pytest.approx(mirrored["pearson"]) and ours["spearman"] == pytest.approx(
        mirrored["spearman"]
    )
    assert ours["controlled"]["mean"] == pytest.approx(1 - mirrored["controlled"]["mean"])


def test_length_covariate_agrees_with_scikit_learn():
    deltas = honest(500)
    lengths = np.random.default_rng(3).integers(1, 40, size=(500, 2)).astype(float)
    gaps = np.log1p(lengths[:, 0]) - np.log1p(lengths[:, 1])
    x = np.stack([deltas / np.sqrt((deltas**2).mean()), gaps / np.sqrt((gaps**2).mean())], 1)
    mirrored = (
        LogisticRegression(fit_intercept=False, C=1 / 0.2, tol=1e-8)
        .fit(np.r_[x, -x], np.r_[np.ones(500), np.zeros(500)])
        .coef_[0]
    )
    got = length_bias(deltas, lengths)["coefficients"]
    assert (got["score"], got["length"]) == pytest.approx(tuple(mirrored), abs=1e-3)


def test_reload_and_batches_are_bounded():
    scores = np.array([[2.0, 1], [3, 0], [1, 0]] * 4)
    assert certificate_of(scores)["passed"]
    assert "loading" in certificate_of(scores, trained=scores[:2] + 1e-3)["reasons"][0]
    assert "batch" in certificate_of(scores, alone=scores[:1] + 0.01)["reasons"][0]
    assert not certificate_of(scores, alone=scores[:1] * np.nan)["passed"]


@pytest.mark.parametrize("wrong", [0.2, np.nan])
def test_padding_sensitivity_fails_on_the_padding_side_and_is_noted_on_the_other(wrong):
    scores = [[2.0, 1], [3, 0]] * 4
    whole = certificate_of(scores, padding_side="right", padding_difference={"left": 1e-6, "right": 1e-3})
    assert (
        whole["passed"]
        and whole["notes"] == []
        and whole["padding_difference"] == {"left": 1e-6, "right": 1e-3}
    )
    noted = certificate_of(scores, padding_side="right", padding_difference={"left": wrong, "right": 0.0})
    assert noted["passed"] and noted["reasons"] == []
    assert re.fullmatch(
        r"not safe to pad on the left, while its tokenizer pads on the right: .* by (0\.2|inf), expected "
        r"at most 0\.001",
        noted["notes"][0],
    )
    failed = certificate_of(scores, padding_side="left", padding_difference={"left": wrong, "right": 0.0})
    assert not failed["passed"] and failed["notes"] == []
    assert failed["reasons"][0].startswith("not safe to pad on the left, as its tokenizer pads")
    assert certificate_of(
        scores,
        padding_side="left",
        padding_difference={"left": 0.2, "right": 0.0},
        limits={"padding_tolerance": None},
    )["passed"]
    assert certificate_of(scores)["padding_difference"] is None


def test_windows_of_one_conversation_do_not_narrow_the_interval():
    """85 of 138 pairs of 117 conversations: Wilson's interval of 58 trials reaches below chance, that of 138
    does not.
    """
    scores = [[1.0, 0]] * 85 + [[0, 1.0]] * 53
    alone, clustered = certificate_of(scores), certificate_of(scores, conversations=117)
    assert alone["accuracy"]["n"] == 138 and (
        alone["accuracy"]["low"],
        alone["accuracy"]["high"],
    ) == pytest.approx((0.5327, 0.6929), abs=1e-4)
    assert clustered["accuracy"]["n"] == 58 and clustered["accuracy"]["mean"] == 85 / 138
    assert (clustered["accuracy"]["low"], clustered["accuracy"]["high"]) == pytest.approx(
        (0.4873, 0.7302), abs=1e-4
    )
    assert clustered["length"]["longer_preferred"]["n"] == clustered["length"]["controlled"]["n"] == 58
    assert alone["passed"] and not clustered["passed"] and clustered["conversations"] == 117
    lengths = np.tile([10.0, 10.0], (138, 1))
    for near, trials in (
        (138, 58),
        (100, 58),
        (40, 40),
    ):  # of pairs of like length, some; no more trials than they are
        lengths[near:] = [10.0, 20.0]
        assert (
            certificate_of(scores, lengths, conversations=117, limits={"min_accuracy": None})["length"][
                "matched"
            ]["n"]
            == trials
        )
    assert independent(3, 1) == 1 and independent(3, 100) == 3


def test_pairs_of_a_prompt_that_are_alike_count_less() -> None:
    """Twelve prompts with two pairs each, nine right in both: p = 3/4, variance between prompts
    12/11 (9 (1/2)² + 3 (3/2)²) / 24² = 0.017045, so 3/16 / 0.017045 = 11 trials, times (1.96 / 2.201)².
    """
    prompts = [str(i // 2) for i in range(24)]
    right = np.array([1.0] * 18 + [0.0] * 6)
    assert (
        effective_trials(right, prompts, 24) == effective_trials(right, prompts, 9) == 8
        and effective_trials(right, prompts, 5) == 5
    )
    assert effective_trials(np.ones(24), prompts, 24) == 12, "nothing varies: as many as prompts"
    assert effective_trials(np.array([1.0, 0] * 12), prompts, 24) == 24, "no variance between prompts"
    assert (
        effective_trials(right, [str(i) for i in range(24)], 24)
        == effective_trials(right, ["one"] * 24, 24)
        == 24
    )
    scores = [[value, 0.5] for value in right]
    assert certificate_of(scores, prompts=prompts)["accuracy"]["n"] == 8
    assert certificate_of(scores)["accuracy"]["n"] == 24


def test_a_reward_model_at_chance_is_rarely_certified() -> None:
    """Forty prompts with six pairs each, all right or all wrong by a coin: 40 trials, not 240."""
    rng, prompts = np.random.default_rng(0), [str(i // 6) for i in range(240)]
    passed = 0
    for _ in range(400):
        deltas = np.repeat(rng.choice([-1.0, 1.0], 40), 6)
        passed += accuracy(deltas, 240, prompts)["low"] > 0.5
    assert passed / 400 < 0.05


def test_conversations_are_identified_by_id_or_first_turn():
    def side(*turns, **meta):
        return Trajectory(
            tuple({"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(turns)),
            meta=meta,
        )

    topic = Prompt("p", ({"role": "system", "content": "kites"},))
    short, long, other = side("hi", "hello"), side("hi", " hello", "you?", "fine"), side("hi", "bye")
    assert conversations_of([Group(topic, (short, other)), Group(topic, (long, other))]) == 2
    question = [{"role": ("user", "assistant")[i % 2], "content": str(i)} for i in range(3)]
    answers = [Trajectory(({"role": "assistant", "content": text},)) for text in ("yes", "no")]
    assert conversations_of([Group(Prompt("p", tuple(question)), tuple(answers))]) == 2
    named = [side("hi", "hello", conversation=name) for name in "abca"]
    assert conversations_of([Group(topic, tuple(named[:2])), Group(topic, tuple(named[2:]))]) == 3


def test_certificate_is_decided_by_the_intervals_lower_bound():
    """16 of 20: 80 % [58.4 %, 91.9 %]."""
    scores = [[1.0, 0]] * 16 + [[0, 1.0]] * 4
    assert (
        certificate_of(scores)["passed"] and certificate_of(scores, limits={"min_accuracy": 0.58})["passed"]
    )
    (reason,) = certificate_of(scores, limits={"min_accuracy": 0.59})["reasons"]
    assert (
        reason == "held-out accuracy is 80.0% [58.4%, 91.9%]; expected a lower bound above 59.0% (the floor)"
    )
    assert not certificate_of(scores, limits={"min_pairs": 21})["passed"]
    with pytest.raises(RecipeError, match="min_accuracy"):
        certificate_of(scores, limits={"min_acuracy": 0.7})


@pytest.mark.parametrize("floor", [0.0, 0.5])
def test_accuracy_not_above_chance_fails_regardless_of_min_accuracy(floor):
    coin = certificate_of([[1.0, 0]] * 15 + [[0, 1.0]] * 14, limits={"min_accuracy": floor})
    assert not coin["passed"] and "expected a lower bound above 50.0% (chance)" in coin["reasons"][0]


def test_certificate_notes_that_accuracy_is_not_required():
    waived = certificate_of([[0.0, 1]] * 4, limits={"min_accuracy": None})
    assert waived["passed"] and "accuracy was not required" in waived["notes"][0]
    assert "is not shown to be better than chance" in waived["notes"][0]
    better = certificate_of([[1.0, 0]] * 60, limits={"min_accuracy": None})
    assert "it is shown to be better than chance" in better["notes"][0]


def test_separate_limits_for_contrast_pairs_and_best_of_n():
    scores, limits = [[1.0, 0]] * 20, {"min_accuracy_by_kind": {"contrast": 0.5}, "best_of_n_rises": True}
    good, coin = share(0.8, 40), share(0.55, 40)
    rising, flat = (
        {"1": good, "8": good, "rises": good},
        {"1": good, "8": good, "rises": {**good, "low": -0.01}},
    )
    assert certificate_of(
        scores, by_kind={"contrast": good, "pass_fail": coin}, best_of_n=rising, limits=limits
    )["passed"]
    assert certificate_of(scores, by_kind={"contrast": coin}, best_of_n=flat)["passed"], "no limit, no reason"
    assert (
        "accuracy on pairs of kind contrast is 55.0%"
        in certificate_of(scores, by_kind={"contrast": coin}, best_of_n=rising, limits=limits)["reasons"][0]
    )
    both = {**limits, "min_accuracy_by_kind": {"contrast": 0.5, "pass_fail": 0.5}}
    assert (
        "of kind pass_fail is 55.0%"
        in certificate_of(
            scores, by_kind={"contrast": good, "pass_fail": coin}, best_of_n=rising, limits=both
        )["reasons"][0]
    )
    assert (
        "best of 1"
        in certificate_of(scores, by_kind={"contrast": good}, best_of_n=flat, limits=limits)["reasons"][0]
    )
    assert [
        reason.split(",")[0].rpartition(" ")[2] for reason in certificate_of(scores, limits=limits)["reasons"]
    ] == ["measured", "measured"]


def test_a_rise_on_a_few_prompts_may_be_chance():
    scores, limits = [[1.0, 0]] * 20, {"best_of_n_rises": True}
    for n, shown in ((1, False), (5, False), (6, True)):
        rising = best_of_n([[0.1, 0.9]] * n, [[0.0, 1.0]] * n)
        found = certificate_of(scores, best_of_n=rising, limits=limits)
        assert found["passed"] == shown
        assert shown or f"from {n} only" in found["reasons"][0]


def test_accuracy_by_kind_uses_only_pairs_of_that_kind():
    def pair(kind, i):
        meta = {} if kind is None else {"pair": {"kind": kind}}
        return Group(
            Prompt(str(i), (), meta=meta),
            tuple(Trajectory(({"role": "assistant", "content": f"{i} {side}"},)) for side in "ab"),
        )

    kinds = ["contrast", "pass_fail", "contrast", None, "pass_fail", "contrast"]
    found = accuracy_by_kind(
        [[1, 0], [0, 1], [0, 1], [1, 0], [1, 1], [3, 1]], [pair(kind, i) for i, kind in enumerate(kinds)]
    )
    assert {kind: (row["mean"], row["n"]) for kind, row in found.items()} == {
        "contrast": (pytest.approx(2 / 3), 3),
        "pass_fail": (0.25, 2),
    }


def test_accuracy_by_kind_counts_alike_pairs_of_a_prompt_less() -> None:
    """The twelve prompts of `test_pairs_of_a_prompt_that_are_alike_count_less`."""

    def pair(i: int) -> Group:
        asked = ({"role": "user", "content": f"question {i // 2}"},)
        answers = tuple(Trajectory(({"role": "assistant", "content": f"{i} {side}"},)) for side in "ab")
        return Group(Prompt("p", asked, meta={"pair": {"kind": "contrast"}}), answers)

    found = accuracy_by_kind([[float(i < 18), 0.5] for i in range(24)], [pair(i) for i in range(24)])
    assert found["contrast"]["n"] == 8


def test_require_refuses_missing_and_failed_certificates():
    good = certificate_of([[1.0, 0]] * 8)
    assert require(good) is good
    for nothing in (None, {}):
        with pytest.raises(ContractError, match="certificate"):
            require(nothing)
    with pytest.raises(ContractError, match="accuracy"):
        require(certificate_of([[0.0, 1], [0, 1]]))


def test_broken_scores_and_shapes_are_refused():
    with pytest.raises(ContractError, match="1 of 2"):
        certificate_of([[np.nan, 1], [2, 1]])
    for wrong in ([], [[1.0, 2, 3]]):
        with pytest.raises(DataError):
            certificate_of(wrong)


def test_pairs_are_of_one_prompt_by_its_text() -> None:
    def pair(*asked: str) -> Group:
        turns = tuple({"role": "user", "content": text} for text in asked)
        answers = [Trajectory(({"role": "assistant", "content": text},)) for text in ("yes", "no")]
        return Group(Prompt("p", turns), tuple(answers))

    first, same, other, *without = prompts_of([pair("A?"), pair("a? "), pair("B?"), pair(), pair()])
    assert first == same != other and len({first, other, *without}) == 4
