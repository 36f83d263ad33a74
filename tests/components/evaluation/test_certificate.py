"""The certificate: numbers worked by hand, scikit-learn's calibration, and every way to be refused."""

import json
import re

import numpy as np
import pytest
from scipy.special import expit
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss

from components.errors import ContractError, DataError, RecipeError
from components.evaluation.certificate import (
    accuracy,
    calibration,
    certify,
    conversations_of,
    independent,
    length_bias,
    require,
)
from components.types import Group, Prompt, Trajectory


def made(scores, lengths=None, **changes):
    scores = np.asarray(scores, float)
    lengths = np.tile([10.0, 9.0], (len(scores), 1)) if lengths is None else lengths
    return certify(scores=scores, lengths=lengths, **{"trained": scores[:2], "alone": scores[:2], **changes})


def honest(n=4000, seed=0):
    """Pairs whose chosen side really was chosen with probability σ(Δ): perfectly calibrated by construction."""
    rng = np.random.default_rng(seed)
    delta = rng.normal(scale=1.5, size=n)
    return np.where(rng.random(n) < expit(delta), delta, -delta)


def test_by_hand():
    certificate = made([[2, 1], [0, 1], [1, 1], [3, 0]])
    assert certificate["accuracy"]["mean"] == pytest.approx(2.5 / 4)
    assert certificate["ties"] == 0.25
    brier = np.mean([(1 - expit(d)) ** 2 for d in (1, -1, 0, 3)])
    assert certificate["brier"] == pytest.approx(brier)
    assert certificate["brier"] == pytest.approx(brier_score_loss([1] * 4, expit([1, -1, 0, 3])))
    assert not certificate["passed"] and "tied" in certificate["reasons"][0]
    json.dumps(certificate)


def test_calibration_is_small_when_honest_and_large_when_boastful():
    deltas = honest()
    error, bins = calibration(deltas)
    assert error < 0.03 and sum(b["pairs"] for b in bins) == len(deltas)
    loud, _ = calibration(5 * deltas)
    assert loud > 0.1
    hand, table = calibration(np.array([np.log(3), np.log(3), np.log(3), -np.log(3)]))  # says 75 %, is right 3 of 4 times
    assert hand == pytest.approx(0, abs=1e-12) and table == [{"confidence": pytest.approx(0.75), "accuracy": 0.75, "pairs": 4}]


def test_a_model_that_counts_words_is_caught():
    rng = np.random.default_rng(0)
    lengths = rng.integers(5, 60, size=(600, 2)).astype(float)
    gaps = np.log1p(lengths[:, 0]) - np.log1p(lengths[:, 1])
    counting = length_bias(gaps * 3, lengths)
    assert counting["spearman"] == pytest.approx(1) and counting["pearson"] == pytest.approx(1)
    assert counting["controlled"]["mean"] == pytest.approx(0.5, abs=0.06)
    fair = length_bias(rng.normal(1, 1, 600), lengths)
    assert abs(fair["pearson"]) < 0.1 and fair["controlled"]["mean"] > 0.75 and fair["matched"]["n"] < 600
    assert fair["longer_preferred"] == accuracy(gaps)


def test_swapping_every_pair_mirrors_accuracy_and_keeps_correlation():
    rng = np.random.default_rng(1)
    deltas, lengths = rng.normal(size=50), rng.integers(1, 30, size=(50, 2)).astype(float)
    ours, mirrored = length_bias(deltas, lengths), length_bias(-deltas, lengths[:, ::-1])
    assert ours["pearson"] == pytest.approx(mirrored["pearson"]) and ours["spearman"] == pytest.approx(mirrored["spearman"])
    assert ours["controlled"]["mean"] == pytest.approx(1 - mirrored["controlled"]["mean"])


def test_length_covariate_agrees_with_scikit_learn():
    deltas = honest(500)
    lengths = np.random.default_rng(3).integers(1, 40, size=(500, 2)).astype(float)
    gaps = np.log1p(lengths[:, 0]) - np.log1p(lengths[:, 1])
    x = np.stack([deltas / np.sqrt((deltas**2).mean()), gaps / np.sqrt((gaps**2).mean())], 1)
    mirrored = LogisticRegression(fit_intercept=False, C=1 / 0.2, tol=1e-8).fit(np.r_[x, -x], np.r_[np.ones(500), np.zeros(500)]).coef_[0]
    got = length_bias(deltas, lengths)["coefficients"]
    assert (got["score"], got["length"]) == pytest.approx(tuple(mirrored), abs=1e-3)


def test_reload_and_batches_are_bounded():
    scores = np.array([[2.0, 1], [3, 0], [1, 0]])
    assert made(scores)["passed"]
    assert "reading back" in made(scores, trained=scores[:2] + 1e-3)["reasons"][0]
    assert "batch" in made(scores, alone=scores[:1] + 0.01)["reasons"][0]
    assert not made(scores, alone=scores[:1] * np.nan)["passed"]


@pytest.mark.parametrize("wrong", [0.2, np.nan])
def test_padding_fails_where_the_tokenizer_pads_and_is_noted_elsewhere(wrong):
    scores = [[2.0, 1], [3, 0]]
    whole = made(scores, padding_side="right", padding_difference={"left": 1e-6, "right": 1e-3})
    assert whole["passed"] and whole["notes"] == [] and whole["padding_difference"] == {"left": 1e-6, "right": 1e-3}
    noted = made(scores, padding_side="right", padding_difference={"left": wrong, "right": 0.0})
    assert noted["passed"] and noted["reasons"] == []
    assert re.fullmatch(r"not safe to pad on the left, while its tokenizer pads on the right: .* is (0\.2|inf), expected at most 0\.001", noted["notes"][0])
    failed = made(scores, padding_side="left", padding_difference={"left": wrong, "right": 0.0})
    assert not failed["passed"] and failed["notes"] == []
    assert failed["reasons"][0].startswith("not safe to pad on the left, as its tokenizer pads: difference by transformers is ")
    assert made(scores, padding_side="left", padding_difference={"left": 0.2, "right": 0.0}, limits={"padding_tolerance": None})["passed"]
    assert made(scores)["padding_difference"] is None


def test_windows_of_one_conversation_do_not_narrow_the_interval():
    """80 of 138 pairs of 117 conversations: Wilson's interval of 58 trials, [45.2, 69.8], and the same verdict."""
    scores = [[1.0, 0]] * 80 + [[0, 1.0]] * 58
    alone, clustered = made(scores, limits={"min_accuracy": 80 / 138}), made(scores, conversations=117, limits={"min_accuracy": 80 / 138})
    assert alone["accuracy"]["n"] == 138 and (alone["accuracy"]["low"], alone["accuracy"]["high"]) == pytest.approx((0.4963, 0.6588), abs=1e-4)
    assert clustered["accuracy"]["n"] == 58 and clustered["accuracy"]["mean"] == 80 / 138
    assert (clustered["accuracy"]["low"], clustered["accuracy"]["high"]) == pytest.approx((0.4516, 0.6979), abs=1e-4)
    assert clustered["length"]["longer_preferred"]["n"] == clustered["length"]["controlled"]["n"] == 58
    assert alone["passed"] and clustered["passed"] and clustered["conversations"] == 117
    lengths = np.tile([10.0, 10.0], (138, 1))
    for near, trials in ((138, 58), (100, 58), (40, 40)):  # of pairs of like length, some; no more trials than they are
        lengths[near:] = [10.0, 20.0]
        assert made(scores, lengths, conversations=117, limits={"min_accuracy": None})["length"]["matched"]["n"] == trials
    assert independent(3, 1) == 1 and independent(3, 100) == 3


def test_conversations_are_told_by_their_name_or_by_how_they_open():
    def side(*turns, **meta):
        return Trajectory(tuple({"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(turns)), meta=meta)

    topic = Prompt("p", ({"role": "system", "content": "kites"},))
    short, long, other = side("hi", "hello"), side("hi", " hello", "you?", "fine"), side("hi", "bye")
    assert conversations_of([Group(topic, (short, other)), Group(topic, (long, other))]) == 2
    named = [side("hi", "hello", conversation=name) for name in "abca"]
    assert conversations_of([Group(topic, tuple(named[:2])), Group(topic, tuple(named[2:]))]) == 3


def test_limits_decide_and_are_spelt():
    scores = [[1.0, 0], [1, 0], [0, 1], [1, 0]]
    assert made(scores, limits={"min_accuracy": 0.75})["passed"]
    assert not made(scores, limits={"min_accuracy": 0.76})["passed"]
    assert not made(scores, limits={"min_pairs": 5})["passed"]
    with pytest.raises(RecipeError, match="min_accuracy"):
        made(scores, limits={"min_acuracy": 0.7})


def test_require_refuses_absent_and_failed():
    good = made([[1.0, 0]], trained=[[1.0, 0]], alone=[[1.0, 0]])
    assert require(good) is good
    for nothing in (None, {}):
        with pytest.raises(ContractError, match="no certificate"):
            require(nothing)
    with pytest.raises(ContractError, match="held-out accuracy is 0"):
        require(made([[0.0, 1], [0, 1]]))


def test_broken_scores_and_shapes_are_refused():
    with pytest.raises(ContractError, match="1 of 2"):
        made([[np.nan, 1], [2, 1]])
    for wrong in ([], [[1.0, 2, 3]]):
        with pytest.raises(DataError):
            made(wrong)
