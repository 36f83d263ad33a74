"""Annotator `people`: the preferences of people as a reward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ratchet.components.labels.labels import SCORE, WEIGHT
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count, Natural, Positive, Share
from ratchet.components.types import Columns, Context, Group


@piece(reads=("people",), writes=("reward.people", "label_weight"), paper="arXiv:2203.02155")
def people(
    groups: Sequence[Group],
    ctx: Context,
    *,
    labels: Count = 200,
    overlap: Share = 0.0,
    common: Natural | None = None,
    deadline_hours: Positive | None = 48.0,
    select: Sequence[Mapping[str, Any] | str] = (),
    repeats: Share = 0.0,
    guidelines: str = "",
    simulated: Sequence[Share] = (),
    verifier: str = "",
) -> Columns:
    """Labels that people give in every round on the page of `ratchet label`: 1 for an answer that was chosen
    over another, 0 for the other, 0.5 for a tie, and the mean of several (as the labelling rounds of
    arXiv 2203.02155 and 2307.09288, with two answers a comparison).

    `labels` are asked for in a round, of which the share `overlap` of the pairs is judged by two
    annotators. Selectors in `select` choose the pairs, by columns of the annotators before this one (without
    selectors: at random, one pair a prompt first). Every annotator begins with the same `common` pairs, so
    that one who clicks at random is found (null: 32, at most a quarter of the pairs, if `overlap` is above
    0); what further annotators say about these comes on top of `labels`. So do the answers to the share
    `repeats` of the pairs that an annotator sees a second time, which measure whether they agree with
    themselves. The run waits until the labels are in, or for `deadline_hours` (null: without end), and goes
    on with the answers that were judged; the others are left out. The column `label_weight` has the weight of
    each answer's comparisons by the Dawid-Skene model, with mean 1, for the key `weight_column` of an
    objective. `simulated`: error rates of simulated annotators who answer instead, over the same page, by the
    reward piece `verifier`.
    """
    return {
        "reward.people": [list(group.columns[SCORE]) for group in groups],
        WEIGHT: [list(group.columns[WEIGHT]) for group in groups],
    }
