"""Reward-model ensemble."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Literal

from ratchet.components.inference.answers import reward_model_scores
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Bool, Names, NotNegative
from ratchet.components.types import OK, Columns, Context, Group


def aggregate(scores: Sequence[float], how: str, uncertainty: float) -> float:
    """mean | min (worst-case optimisation, WCO) | uwo (uncertainty-weighted: mean minus `uncertainty` times
    the population variance over members).
    """
    if how == "min":
        return min(scores)
    mean = statistics.fmean(scores)
    return mean - uncertainty * statistics.pvariance(scores) if how == "uwo" else mean


@piece(writes=("reward.ensemble", "reward.ensemble.status", "scores.{models}"), paper="arXiv:2310.02743")
def ensemble(
    groups: Sequence[Group],
    ctx: Context,
    *,
    models: Names,
    how: Literal["mean", "min", "uwo"] = "mean",
    uncertainty: NotNegative = 0.5,
    standardise: Bool = True,
) -> Columns:
    """`reward.ensemble` of the members' scores r_i: their mean (`mean`), min over i of r_i (`min`, worst-case
    optimisation) or mean - `uncertainty` x variance over i (`uwo`, uncertainty-weighted; section 3.2). Each
    member's score is written too, as `scores.<model>`.

    Bradley-Terry scores have arbitrary offset and scale: `standardise` normalises each member over the given
    answers (the paper's code does so once, on held-out answers of the SFT policy). The mean reward then says
    nothing, 0 for `mean`: neither a metric of the evaluation nor a health rule can compare it. If a member
    fails or skips an answer, so does the ensemble.
    """
    members = [reward_model_scores(groups, ctx, model) for model in models]
    scaled = [_standardised(values) if standardise else values for values, _ in members]
    combined, statuses = [], []
    for g, group in enumerate(groups):
        status = [
            next((s[g][i] for _, s in members if s[g][i] != OK), OK) for i in range(len(group.trajectories))
        ]
        combined.append(
            [
                aggregate([v[g][i] for v in scaled], how, uncertainty) if what == OK else None  # pyright: ignore[reportArgumentType]
                for i, what in enumerate(status)
            ]
        )
        statuses.append(status)
    own = {f"scores.{model}": values for model, (values, _) in zip(models, members, strict=True)}
    return {"reward.ensemble": combined, "reward.ensemble.status": statuses, **own}


def _standardised(values: list[list[float | None]]) -> list[list[float | None]]:
    every = [v for row in values for v in row if v is not None]
    mean = statistics.fmean(every) if every else 0.0
    deviation = statistics.pstdev(every) if len(every) > 1 else 0.0
    return [[None if v is None else (v - mean) / (deviation or 1.0) for v in row] for row in values]
