"""Certificate of a reward model: held-out accuracy, calibration and length bias, with a verdict.

Computed once from the saved model on held-out pairs; online training refuses a reward model without a passed
certificate. It passes only if the lower bound of its accuracy is above chance. Pairs share conversations and
prompts, so intervals count at most half as many trials as there are distinct conversations, and fewer where
the pairs of a prompt are alike.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ratchet.components.errors import ContractError, DataError
from ratchet.components.evaluation.bootstrap import Interval, enough
from ratchet.components.evaluation.certificate_statistics import (
    accuracy,
    calibration,
    conversations_of,
    independent,
    length_bias,
    prompts_of,
    sigmoid,
)
from ratchet.components.recipes.conform import conform
from ratchet.components.recipes.sections import Limits
from ratchet.components.types import Group

CHANCE = 0.5


@dataclass(frozen=True)
class Certificate:
    """All measurements and the verdict. Shares are in 0..1. `cross_validated`: accuracy of the initial linear
    probe on the training pairs, cross-validated by topic. `by_kind`: accuracy by kind of pair (`contrast`,
    `pass_fail`, ..., and `sampled`, all pairs of two sampled answers to one prompt, of which one is
    verified).
    `best_of_n`: see `components/evaluation/best_of_n.py`. `reliability`: calibration bins. `notes`: caveats
    that do not fail it.
    """

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


def certify(
    *,
    scores: Sequence[Sequence[float]],
    lengths: Sequence[Sequence[float]],
    trained: Sequence[Sequence[float]],
    alone: Sequence[Sequence[float]],
    conversations: int | None = None,
    prompts: Sequence[str] | None = None,
    cross_validated: Interval | None = None,
    by_kind: Mapping[str, Interval] | None = None,
    best_of_n: Mapping[str, Any] | None = None,
    padding_side: str | None = None,
    padding_difference: Mapping[str, float] | None = None,
    limits: Mapping[str, float | None] | None = None,
) -> dict[str, Any]:
    """The certificate as a JSON-serialisable mapping, from (chosen, rejected) scores (N,2) and lengths (N,2)
    of held-out pairs.

    `scores`: by the saved and reloaded model. `trained`, `alone`: scores of the first pairs again, by the
    model in memory before saving, and one pair at a time. `conversations`: number of distinct conversations
    (`conversations_of`; default two per pair). `prompts` (N,): of which prompt each pair is (`prompts_of`;
    default: another for each). `padding_difference`: by side, the largest change of a score
    in plain transformers when texts are padded there; `padding_side`: side on which the saved tokenizer pads.
    Both are None for architectures without a transformers class.

    `DataError` without pairs, `ContractError` for non-finite scores, `RecipeError` for an unknown limit.
    """
    bounds = asdict(conform(Limits, limits or {}, "reward.certificate"))
    pairs = np.asarray(scores, dtype=float)
    if pairs.ndim != 2 or pairs.shape[1:] != (2,):
        raise DataError(
            f"a certificate needs (chosen, rejected) scores of held-out pairs, got shape {pairs.shape}"
        )
    if not np.isfinite(pairs).all():
        raise ContractError(
            f"{int((~np.isfinite(pairs)).any(1).sum())} of {len(pairs)} held-out pairs have a score that "
            "is not finite; check the reward model's learning rate and precision"
        )
    deltas = pairs[:, 0] - pairs[:, 1]
    conversations = 2 * len(pairs) if conversations is None else conversations
    most = independent(len(pairs), conversations)
    error, bins = calibration(deltas)
    measured: dict[str, Any] = {
        "pairs": len(pairs),
        "conversations": conversations,
        "accuracy": accuracy(deltas, most, prompts),
        "by_kind": dict(by_kind or {}),
        "best_of_n": best_of_n and dict(best_of_n),
        "cross_validated": cross_validated,
        "ties": float((deltas == 0).mean()),
        "brier": float(np.mean((1 - sigmoid(deltas)) ** 2)),
        "calibration_error": error,
        "reliability": bins,
        "margin": {"mean": float(deltas.mean()), "deviation": float(deltas.std())},
        "length": length_bias(deltas, np.asarray(lengths, dtype=float), most, prompts),
        "reload_difference": _worst(pairs, trained, "trained"),
        "batch_difference": _worst(pairs, alone, "alone"),
        "padding_side": padding_side,
        "padding_difference": None
        if padding_difference is None
        else {
            side: worst if math.isfinite(worst) else math.inf for side, worst in padding_difference.items()
        },
    }
    padded, notes = _padding(measured, bounds)
    if bounds["min_accuracy"] is None:
        above = measured["accuracy"]["low"] > CHANCE
        notes.append(
            "accuracy was not required (`min_accuracy: null`), so no policy optimised against this reward "
            f"model can become champion; it is {'' if above else 'not '}shown to be better than chance"
        )
    reasons = _failures(measured, bounds) + padded
    return asdict(Certificate(passed=not reasons, reasons=reasons, notes=notes, limits=bounds, **measured))


def require(certificate: Mapping[str, Any] | None, name: str = "the reward model") -> Mapping[str, Any]:
    """The certificate if it passed, else `ContractError` with the reasons."""
    if not certificate or "passed" not in certificate:
        raise ContractError(
            f"{name} has no certificate; expected one computed on held-out pairs. Train it with the reward "
            "stage of a recipe, or run `ratchet certify`, before online training optimises it"
        )
    if not certificate["passed"]:
        raise ContractError(
            f"{name} failed its certificate: {'; '.join(certificate['reasons'])}. Use more or cleaner "
            "pairs, or change the limit in `reward.certificate`"
        )
    return certificate


def accuracy_by_kind(scores: Sequence[Sequence[float]], pairs: Sequence[Group]) -> dict[str, Interval]:
    """Accuracy by the kind of pair in the prompts' `meta["pair"]["kind"]`."""
    deltas, kinds = (
        np.diff(np.asarray(scores, dtype=float))[:, 0] * -1,
        [pair.prompt.meta.get("pair", {}).get("kind") for pair in pairs],
    )
    found = {}
    for kind in sorted({kind for kind in kinds if kind}):
        rows = [i for i, own in enumerate(kinds) if own == kind]
        own = [pairs[i] for i in rows]
        found[kind] = accuracy(deltas[rows], independent(len(own), conversations_of(own)), prompts_of(own))
    return found


def _failures(measured: Mapping[str, Any], bounds: Mapping[str, float | None]) -> list[str]:
    checks = [
        ("held-out pairs", measured["pairs"], bounds["min_pairs"], "at least"),
        ("share of tied pairs", measured["ties"], bounds["max_ties"], "at most"),
        ("calibration error", measured["calibration_error"], bounds["max_calibration_error"], "at most"),
        (
            "correlation with length",
            abs(measured["length"]["spearman"]),
            bounds["max_length_correlation"],
            "at most",
        ),
        (
            "score difference after saving and loading",
            measured["reload_difference"],
            bounds["reload_tolerance"],
            "at most",
        ),
        (
            "score difference between single and batched pairs",
            measured["batch_difference"],
            bounds["batch_tolerance"],
            "at most",
        ),
    ]
    return _uncertain(measured, bounds) + [
        f"{what} is {got:.4g}, expected {how} {bound:g}"
        for what, got, bound, how in checks
        if bound is not None and (got < bound if how == "at least" else got > bound)
    ]


def _uncertain(measured: Mapping[str, Any], bounds: Mapping[str, Any]) -> list[str]:
    """Reasons for each interval whose lower bound does not exceed its limit."""
    rises = measured["best_of_n"] and measured["best_of_n"]["rises"]
    floor = bounds["min_accuracy"]
    checks: list[tuple[str, Interval | None, float | None, str]] = [
        (
            "held-out accuracy",
            measured["accuracy"],
            floor if floor is None else max(floor, CHANCE),
            "the floor" if (floor or 0) > CHANCE else "chance",
        ),
        *(
            (
                f"accuracy on pairs of kind {kind}",
                measured["by_kind"].get(kind),
                least,
                "`min_accuracy_by_kind`",
            )
            for kind, least in (bounds["min_accuracy_by_kind"] or {}).items()
        ),
        (
            "rise of the true rate from the best of 1 to the best of all answers",
            rises,
            0.0 if bounds["best_of_n_rises"] else None,
            "none",
        ),
    ]
    return [
        reason
        for what, found, bound, name in checks
        if bound is not None
        for reason in shortfall(what, found, bound, name)
    ]


def shortfall(what: str, found: Interval | None, bound: float, name: str) -> list[str]:
    """A one-element list with the reason if the interval is missing, of too few units or its lower bound is
    not above `bound`, else [].
    """
    if found is None:
        return [f"{what} was not measured, expected above {bound:.1%}"]
    reached = f"{what} is {found['mean']:.1%} [{found['low']:.1%}, {found['high']:.1%}]"
    if found["low"] <= bound:
        return [f"{reached}; expected a lower bound above {bound:.1%} ({name})"]
    return [] if enough(found["n"]) else [f"{reached} from {found['n']} only, which may be chance"]


def _padding(measured: Mapping[str, Any], bounds: Mapping[str, float | None]) -> tuple[list[str], list[str]]:
    """Reasons to fail and notes, for each side on which padding changes scores.

    Wrong scores with padding on the tokenizer's own side fail, since that is the default of every user. The
    other side gives a note only: transformers counts learned position embeddings (GPT-2) from the first
    column, padded or not.
    """
    reasons: list[str] = []
    notes: list[str] = []
    bound, own = bounds["padding_tolerance"], measured["padding_side"]
    for side, worst in (measured["padding_difference"] or {}).items():
        if bound is not None and worst > bound:
            other = "as its tokenizer pads" if side == own else f"while its tokenizer pads on the {own}"
            (reasons if side == own else notes).append(
                f"not safe to pad on the {side}, {other}: scores in transformers change by {worst:.4g}, "
                f"expected at most {bound:g}"
            )
    return reasons, notes


def _worst(pairs: np.ndarray, again: Sequence[Sequence[float]], what: str) -> float:
    other = np.asarray(again, dtype=float)
    if other.ndim != 2 or not 1 <= len(other) <= len(pairs):
        raise DataError(
            f"{what!r} must hold the scores of the first pairs again, got shape {other.shape} for "
            f"{len(pairs)} pairs"
        )
    worst = float(np.abs(other - pairs[: len(other)]).max())
    return worst if math.isfinite(worst) else math.inf
