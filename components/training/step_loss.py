"""Loss of one step over all ranks: micro-batches, denominators over the whole step, forward and backward."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from ratchet.components.errors import TrainingError
from ratchet.components.recipes.piece_source import Unit
from ratchet.components.training import ranks
from ratchet.components.training.loop import tokens_of
from ratchet.components.training.objectives import Meter, Part
from ratchet.components.training.packing import pack, widest
from ratchet.components.training.reduce import Counts, count, reduce
from ratchet.components.training.steps import TRAINED
from ratchet.components.types import Batch, Group, Outputs

if TYPE_CHECKING:
    from torch import Tensor

    from ratchet.components.protocols import Learner


T = TypeVar("T")


def measure(
    learner: Learner,
    update: Sequence[Part],
    groups: Sequence[Group],
    *,
    tokens: int,
    backward: bool,
    meter: Meter,
) -> float:
    """Weighted, reduced loss of `groups` as one step, over all ranks. With `backward`, gradients accumulate
    in the learner.

    Each rank processes whole groups. Collectives need equal micro-batch counts, so ranks with fewer repeat
    one with weight 0. A loss mask without trainable tokens and a loss that is not finite are a
    `TrainingError`; an objective whose `where` chooses none of them has the loss 0.
    """
    import torch

    columns = step_means(learner, update, trained_rows(groups, trained=False), tokens=tokens)
    groups = trained_rows(groups, trained=True)
    batches, real, per_rank = _micro_batches(
        groups,
        widest([p.unit for p in update]),
        tokens,
        lambda mine: {
            p.label: sum((count(p.restricted(b), p.unit) for b in mine), Counts(p.unit)) for p in update
        },
    )
    totals = {p.label: sum((counts[p.label] for counts in per_rank), Counts(p.unit)) for p in update}
    if not any(any(trajectory.mask) for group in groups for trajectory in group.trajectories):
        raise TrainingError(
            f"no trainable tokens: the loss mask is empty in all {len(groups)} groups "
            f"(prompts {first_ids(group.prompt.id for group in groups)}); check the chat template and the "
            "data's roles"
            if groups
            else f"no trajectory of this step is trained: the column {TRAINED!r} is false in all of them"
        )
    outputs = frozenset().union(*(part.requests for part in update))
    value = 0.0
    for number, batch in enumerate(batches):
        batch = replace(
            batch,
            columns={
                **batch.columns,
                **{name: torch.full((len(batch.ids),), mean) for name, mean in columns.items()},
            },
        )
        with torch.set_grad_enabled(backward):
            out = learner(batch, outputs)
            loss = _loss(update, out, batch, totals, meter if number < real else None)
            value += float(loss.detach()) if number < real else 0.0
            if backward:
                learner.backward(loss if number < real else 0.0 * loss)
    per_rank = ranks.gather((value, meter))
    meter.become([other for _, other in per_rank])
    return math.fsum(part for part, _ in per_rank)


def _loss(
    update: Sequence[Part], out: Outputs, batch: Batch, totals: Mapping[str, Counts], meter: Meter | None
) -> Tensor:
    """Weighted, reduced loss of a micro-batch. Its metrics go into the meter."""
    loss: Any = None
    for part in update:
        mine = part.restricted(batch)
        terms = part(out, mine)
        weight = part.weight if isinstance(part.weight, float) else part.weight.value()  # pyright: ignore[reportAttributeAccessIssue]
        term = weight * reduce(part.reduce, terms.loss, mine, totals[part.label])
        if not math.isfinite(float(term.detach())):
            raise TrainingError(
                f"the loss term {part.label!r} is {float(term.detach())} on prompts "
                f"{first_ids(batch.ids)}; "
                "the last checkpoint is kept. Lower the learning rate or inspect these records"
            )
        loss = term if loss is None else loss + term
        if meter is not None:
            meter.add(f"{part.label}/loss", terms.loss, mine, part.unit)
            for name, values in terms.metrics.items():
                meter.add(f"{part.label}/{name}", values, mine, part.unit)
    return loss


def step_means(
    learner: Learner, update: Sequence[Part], groups: Sequence[Group], *, tokens: int
) -> dict[str, float]:
    """Means declared by objectives (`means`), over the untrained rows of `groups` on all ranks, without
    gradients.
    """
    import torch

    functions = {name: function for part in update for name, function in part.means.items()}
    if not functions:
        return {}
    if not groups:
        raise TrainingError(
            f"cannot compute {', '.join(functions)}: no trajectory of this step has {TRAINED!r} false; "
            "use a selector that adds such rows"
        )
    outputs = frozenset().union(*(part.outputs for part in update if part.means))
    batches, real, _ = _micro_batches(groups, "row", tokens, len)
    sums = dict.fromkeys(functions, 0.0)
    with torch.no_grad():
        for number, batch in enumerate(batches):
            out = learner(batch, outputs)
            for name, function in functions.items():
                sums[name] += float(function(out, batch).double().sum()) if number < real else 0.0
    rows = sum(len(group.trajectories) for group in groups)
    per_rank = ranks.gather(sums)
    return {name: math.fsum(other[name] for other in per_rank) / rows for name in functions}


def trained_rows(groups: Sequence[Group], *, trained: bool) -> list[Group]:
    """Groups restricted to trajectories that are trained on (or not). Without the column `trained`, all
    are.
    """
    chosen = [
        group.take([i for i, mark in enumerate(group.columns[TRAINED]) if bool(mark) == trained])
        if TRAINED in group.columns
        else group
        for group in groups
        if trained or TRAINED in group.columns
    ]
    return [group for group in chosen if group.trajectories]


def _micro_batches(
    groups: Sequence[Group], unit: Unit, tokens: int, summarise: Callable[[list[Batch]], T]
) -> tuple[list[Batch], int, list[T]]:
    """Micro-batches of this rank, the number of real ones (the rest pad to the maximum over ranks), and
    `summarise(batches)` of every rank.
    """
    batches = pack([groups[i] for i in ranks.share(groups, tokens_of)], unit=unit, tokens=tokens)
    per_rank, real = ranks.gather((len(batches), summarise(batches))), len(batches)
    idle = max(number for number, _ in per_rank) - real
    if idle:
        batches += pack([min(groups, key=tokens_of)], unit=unit, tokens=tokens)[:1] * idle
    return batches, real, [other for _, other in per_rank]


def first_ids(prompts: Iterable[str]) -> str:
    """The first five prompt ids, for an error message."""
    return ", ".join(sorted(set(prompts))[:5])
