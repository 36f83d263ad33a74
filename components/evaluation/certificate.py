"""The reward model's certificate: how often it is right, how sure it should be, and how much it merely counts words.

Made once from a model read back from disk, on pairs it never saw; a loop refuses a reward model without a passed one. It passes
only if the low end of the interval of its accuracy is above chance.
Pairs share conversations, so intervals count at most half as many trials as there are distinct ones: wider than the number
of pairs suggests, and honest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ratchet.components.errors import ContractError, DataError
from ratchet.components.evaluation.bootstrap import Interval, wilson
from ratchet.components.evaluation.linear import bradley_terry
from ratchet.components.recipes.conform import conform
from ratchet.components.recipes.sections import Limits
from ratchet.components.types import Group

CHANCE = 0.5
BINS = 10
MATCHED = 0.1


@dataclass(frozen=True)
class Certificate:
    """Everything measured, and the verdict. Shares in 0..1; `reliability` is a list of bins. `cross_validated` is of the linear
    probe the model began as, over the pairs it was trained on, each topic judged by a fit to the others. `by_kind` is the accuracy by
    kind of pair (`contrast`, `pass_fail`), `best_of_n` what `components/evaluation/best_of_n.py` returns. `notes` say what its
    users must know although it passed."""

    passed: bool
    reasons: list[str]
    notes: list[str]
    pairs: int
    conversations: int
    accuracy: Interval
    by_kind: dict[str, Interval]
    best_of_n: dict[str, Any] | None
    cross_validated: Interval | None
    ties: float
    brier: float
    calibration_error: float
    reliability: list[dict[str, float]]
    margin: dict[str, float]
    length: dict[str, Any]
    reload_difference: float
    batch_difference: float
    padding_side: str | None
    padding_difference: dict[str, float] | None
    limits: dict[str, float | None]


def certify(*, scores: Sequence[Sequence[float]], lengths: Sequence[Sequence[float]], trained: Sequence[Sequence[float]],
            alone: Sequence[Sequence[float]], conversations: int | None = None, cross_validated: Interval | None = None,
            by_kind: Mapping[str, Interval] | None = None, best_of_n: Mapping[str, Any] | None = None,
            padding_side: str | None = None, padding_difference: Mapping[str, float] | None = None,
            limits: Mapping[str, float | None] | None = None) -> dict[str, Any]:
    """The certificate, as JSON takes it, from (chosen, rejected) scores (N,2) and lengths (N,2) of held-out pairs.

    `scores` are those of the saved model. `trained` and `alone` are the first pairs' again: by the model in memory that was
    saved, and one pair at a time. `conversations`: how many the pairs come from (`conversations_of`; absent: two a pair).
    `padding_difference`: by side, how far a score by transformers moves when texts are padded there; `padding_side` is where the
    saved tokenizer pads. Both absent of what transformers has no class for.
    Raises `DataError` without pairs, `ContractError` for non-finite scores, `RecipeError` for an unknown limit.
    """
    bounds = asdict(conform(Limits, limits or {}, "reward.certificate"))
    pairs = np.asarray(scores, dtype=float)
    if pairs.ndim != 2 or pairs.shape[1:] != (2,):
        raise DataError(f"a certificate needs (chosen, rejected) scores of held-out pairs, got shape {pairs.shape}")
    if not np.isfinite(pairs).all():
        raise ContractError(f"{int((~np.isfinite(pairs)).any(1).sum())} of {len(pairs)} held-out pairs have a score that "
                            "is not finite; the reward model is broken, look at its learning rate and precision")
    deltas = pairs[:, 0] - pairs[:, 1]
    conversations = 2 * len(pairs) if conversations is None else conversations
    trials = independent(len(pairs), conversations)
    error, bins = calibration(deltas)
    measured: dict[str, Any] = {
        "pairs": len(pairs),
        "conversations": conversations,
        "accuracy": accuracy(deltas, trials),
        "by_kind": dict(by_kind or {}),
        "best_of_n": best_of_n and dict(best_of_n),
        "cross_validated": cross_validated,
        "ties": float((deltas == 0).mean()),
        "brier": float(np.mean((1 - _sigmoid(deltas)) ** 2)),
        "calibration_error": error,
        "reliability": bins,
        "margin": {"mean": float(deltas.mean()), "deviation": float(deltas.std())},
        "length": length_bias(deltas, np.asarray(lengths, dtype=float), trials),
        "reload_difference": _worst(pairs, trained, "trained"),
        "batch_difference": _worst(pairs, alone, "alone"),
        "padding_side": padding_side,
        "padding_difference": None if padding_difference is None else {
            side: worst if math.isfinite(worst) else math.inf for side, worst in padding_difference.items()},
    }
    padded, notes = _padding(measured, bounds)
    if bounds["min_accuracy"] is None:
        notes.append("accuracy was not required (`min_accuracy: null`); nothing shows that this reward model is better than chance")
    reasons = _failures(measured, bounds) + padded
    return asdict(Certificate(passed=not reasons, reasons=reasons, notes=notes, limits=bounds, **measured))


def require(certificate: Mapping[str, Any] | None, name: str = "the reward model") -> Mapping[str, Any]:
    """The certificate when it passed; otherwise `ContractError` with what is missing and why."""
    if not certificate or "passed" not in certificate:
        raise ContractError(f"{name} carries no certificate; expected one made on held-out pairs. Train it with the reward "
                            "stage of a recipe, or certify it, before a loop optimises against it")
    if not certificate["passed"]:
        raise ContractError(f"{name} failed its certificate: {'; '.join(certificate['reasons'])}. Give it more or clearer "
                            "pairs, or change `reward.certificate` if the limit is wrong")
    return certificate


def conversations_of(pairs: Sequence[Group]) -> int:
    """How many conversations the sides of the pairs are windows of; those that open with the same two turns are one where the
    data does not name it."""
    return len({side.meta.get("conversation") or tuple(m["content"].strip() for m in (*pair.prompt.messages, *side.messages)
                                                       if m["role"] in ("user", "assistant"))[:2]
                for pair in pairs for side in pair.trajectories})


def accuracy_by_kind(scores: Sequence[Sequence[float]], pairs: Sequence[Group]) -> dict[str, Interval]:
    """Accuracy on the pairs of each kind that the prompts' `meta["pair"]["kind"]` names."""
    deltas, kinds = np.diff(np.asarray(scores, dtype=float))[:, 0] * -1, [pair.prompt.meta.get("pair", {}).get("kind") for pair in pairs]
    found = {}
    for kind in sorted({kind for kind in kinds if kind}):
        rows = [i for i, own in enumerate(kinds) if own == kind]
        found[kind] = accuracy(deltas[rows], independent(len(rows), conversations_of([pairs[i] for i in rows])))
    return found


def independent(pairs: int, conversations: int) -> int:
    """How many trials an interval over pairs may count: a comparison takes two conversations, and each is counted once."""
    return max(1, min(pairs, conversations // 2))


def share(right: float, trials: int) -> Interval:
    """Wilson's interval of a share `right` of pairs that amount to so many `trials`."""
    return {**wilson(right * trials, trials), "mean": right}


def accuracy(deltas: np.ndarray, trials: int | None = None) -> Interval:
    """Share of pairs whose chosen answer scores higher, ties half, with an interval over `trials` (absent: every pair is one)."""
    return share(float(((deltas > 0) + 0.5 * (deltas == 0)).mean()), min(len(deltas), trials or len(deltas)))


def calibration(deltas: np.ndarray, bins: int = BINS) -> tuple[float, list[dict[str, float]]]:
    """Expected calibration error (Guo et al., 2017) and the reliability bins behind it.

    Every pair is chosen-first, so the claim is folded: confidence σ(|Δ|) in 0.5..1 that the higher score is the
    preferred one, right when Δ > 0. Bins have equal width; empty ones are left out.
    """
    confidence, right = _sigmoid(np.abs(deltas)), (deltas > 0) + 0.5 * (deltas == 0)
    place = np.minimum(((confidence - 0.5) * 2 * bins).astype(int), bins - 1)
    table = [{"confidence": float(confidence[place == b].mean()), "accuracy": float(right[place == b].mean()),
              "pairs": int((place == b).sum())} for b in np.unique(place)]
    return float(sum(r["pairs"] * abs(r["confidence"] - r["accuracy"]) for r in table) / len(deltas)), table


def length_bias(deltas: np.ndarray, lengths: np.ndarray, trials: int | None = None) -> dict[str, Any]:
    """What of the preference is length: of the people's choice, and of the model's scores.

    Correlations are of (Δscore, Δlog length) mirrored about zero, since which answer comes first is arbitrary.
    `matched` is the accuracy on pairs whose lengths differ by less than 10 %; `controlled` the accuracy of scores with
    their best linear function of Δlog length taken out; `coefficients` those of a logistic regression of the human
    choice on both, in standard deviations: the score's own part is what remains at equal length.
    """
    from scipy.stats import spearmanr

    if lengths.shape != (len(deltas), 2) or (lengths < 0).any():
        raise DataError(f"a certificate needs two lengths a pair, got shape {lengths.shape} for {len(deltas)} pairs")
    gaps = np.log1p(lengths[:, 0]) - np.log1p(lengths[:, 1])
    energy = float((gaps**2).sum())
    slope = float((deltas * gaps).sum()) / energy if energy else 0.0
    varied = energy > 0 and np.ptp(np.abs(deltas)) + np.abs(deltas).max() > 0
    pearson = float((deltas * gaps).sum() / math.sqrt((deltas**2).sum() * energy)) if varied else 0.0
    spearman = float(spearmanr(np.r_[deltas, -deltas], np.r_[gaps, -gaps]).statistic) if varied else 0.0
    near = np.abs(gaps) < math.log1p(MATCHED)
    score_weight, length_weight = _logistic(deltas, gaps)
    return {
        "longer_preferred": accuracy(gaps, trials),
        "pearson": pearson,
        "spearman": spearman,
        "slope": slope,
        "matched": accuracy(deltas[near], trials) if near.any() else None,
        "controlled": accuracy(deltas - slope * gaps, trials),
        "coefficients": {"score": score_weight, "length": length_weight},
    }


def _logistic(deltas: np.ndarray, gaps: np.ndarray) -> tuple[float, float]:
    """P(chosen) = σ(a Δscore + b Δlog length), no intercept: swapping a pair must mirror it. Weak ridge, so it always exists."""
    x = np.stack([column / (np.sqrt((column**2).mean()) or 1.0) for column in (deltas, gaps)], 1)
    a, b = bradley_terry(x, 0.1 / len(x))
    return float(a), float(b)


def _failures(measured: Mapping[str, Any], bounds: Mapping[str, float | None]) -> list[str]:
    checks = [
        ("held-out pairs", measured["pairs"], bounds["min_pairs"], "at least"),
        ("share of tied pairs", measured["ties"], bounds["max_ties"], "at most"),
        ("calibration error", measured["calibration_error"], bounds["max_calibration_error"], "at most"),
        ("correlation with length", abs(measured["length"]["spearman"]), bounds["max_length_correlation"], "at most"),
        ("difference after reading back", measured["reload_difference"], bounds["reload_tolerance"], "at most"),
        ("difference alone against in a batch", measured["batch_difference"], bounds["batch_tolerance"], "at most"),
    ]
    return _uncertain(measured, bounds) + [f"{what} is {got:.4g}, expected {how} {bound:g}" for what, got, bound, how in checks
                                           if bound is not None and (got < bound if how == "at least" else got > bound)]


def _uncertain(measured: Mapping[str, Any], bounds: Mapping[str, float | None]) -> list[str]:
    """A reason for each interval whose low end is not above its bound."""
    rises = measured["best_of_n"] and measured["best_of_n"]["rises"]
    floor = bounds["min_accuracy"]
    checks: list[tuple[str, Interval | None, float | None, str]] = [
        ("held-out accuracy", measured["accuracy"], floor if floor is None else max(floor, CHANCE), "the floor" if (floor or 0) > CHANCE else "chance"),
        *((f"accuracy on pairs of kind {kind}", measured["by_kind"].get(kind), least, "`min_accuracy_by_kind`")
          for kind, least in (bounds["min_accuracy_by_kind"] or {}).items()),
        ("rise of the true rate from the best of 1 to the best of all answers", rises, 0.0 if bounds["best_of_n_rises"] else None, "none"),
    ]
    return [reason for what, found, bound, name in checks if bound is not None for reason in shortfall(what, found, bound, name)]


def shortfall(what: str, found: Interval | None, bound: float, name: str) -> list[str]:
    """One sentence if the low end of an interval is not above a bound, or the interval is absent; else nothing."""
    if found is None:
        return [f"{what} was not measured, expected above {bound:.1%}"]
    return [] if found["low"] > bound else [f"{what} is {found['mean']:.1%} [{found['low']:.1%}, {found['high']:.1%}]; "
                                            f"expected the low end of its interval above {bound:.1%} ({name})"]


def _padding(measured: Mapping[str, Any], bounds: Mapping[str, float | None]) -> tuple[list[str], list[str]]:
    """What is wrong with each side that is not safe to pad on: reasons to fail, and notes.

    The side of the saved tokenizer is where everybody pads who does not say otherwise, so there a wrong score fails. The other one
    is only noted: transformers numbers learned positions (GPT-2's) from the first column, padded or not, which is no fault of the weights.
    """
    reasons: list[str] = []
    notes: list[str] = []
    bound, own = bounds["padding_tolerance"], measured["padding_side"]
    for side, worst in (measured["padding_difference"] or {}).items():
        if bound is not None and worst > bound:
            other = "as its tokenizer pads" if side == own else f"while its tokenizer pads on the {own}"
            (reasons if side == own else notes).append(
                f"not safe to pad on the {side}, {other}: difference by transformers is {worst:.4g}, expected at most {bound:g}")
    return reasons, notes


def _worst(pairs: np.ndarray, again: Sequence[Sequence[float]], what: str) -> float:
    other = np.asarray(again, dtype=float)
    if other.ndim != 2 or not 1 <= len(other) <= len(pairs):
        raise DataError(f"{what!r} must hold the scores of the first pairs again, got shape {other.shape} for {len(pairs)} pairs")
    worst = float(np.abs(other - pairs[: len(other)]).max())
    return worst if math.isfinite(worst) else math.inf


def _sigmoid(x: np.ndarray) -> np.ndarray:
    from scipy.special import expit

    return expit(x)
