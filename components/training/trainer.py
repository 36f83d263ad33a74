"""`fit`: the training loop of every objective and role. It contains no method-specific code.

One step: pack units into micro-batches → count denominators over the whole step → means declared by
objectives (`means`, without gradients) → forward for the requested outputs → weighted, reduced terms →
backward → optimizer step → schedules update from the metrics → log → checkpoint.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ratchet.components.errors import TrainingError
from ratchet.components.piece import Unit
from ratchet.components.storage.checkpoints import Log, latest, load_checkpoint, save_checkpoint
from ratchet.components.storage.state import load_state, save_state
from ratchet.components.training import ranks
from ratchet.components.training.loop import tokens_of
from ratchet.components.training.objectives import Meter, Part, memories
from ratchet.components.training.packing import pack, widest
from ratchet.components.training.postconditions import check_step_counts
from ratchet.components.training.reduce import Counts, count, reduce
from ratchet.components.training.steps import TRAINED, save_is_due, step_groups, steps_planned
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
    `TrainingError`.
    """
    import torch

    columns = step_means(learner, update, _rows(groups, trained=False), tokens=tokens)
    groups = _rows(groups, trained=True)
    batches, real, per_rank = _micro_batches(
        groups,
        widest([p.unit for p in update]),
        tokens,
        lambda mine: {
            p.label: sum((count(p.restricted(b), p.unit) for b in mine), Counts(p.unit)) for p in update
        },
    )
    totals = {p.label: sum((counts[p.label] for counts in per_rank), Counts(p.unit)) for p in update}
    if not any(counts.steps for counts in totals.values()):
        raise TrainingError(
            f"no trainable tokens: the loss mask is empty in all {len(groups)} groups "
            f"(first prompt: {groups[0].prompt.id!r}); check the chat template and the data's roles"
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
                f"{_first_ids(batch.ids)}; "
                "the last checkpoint is kept. Lower the learning rate or inspect these records"
            )
        loss = term if loss is None else loss + term
        if meter is not None:
            meter.add(f"{part.label}/loss", terms.loss, mine)
            for name, values in terms.metrics.items():
                meter.add(f"{part.label}/{name}", values, mine)
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


def _rows(groups: Sequence[Group], *, trained: bool) -> list[Group]:
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


def _first_ids(prompts: Iterable[str]) -> str:
    """The first five prompt ids, for an error message."""
    return ", ".join(sorted(set(prompts))[:5])


def one_step(
    learners: Mapping[str, Learner],
    updates: Mapping[str, Sequence[Part]],
    groups: Sequence[Group],
    *,
    tokens: int,
) -> dict[str, float]:
    """One optimizer step of every role on `groups`. Returns the metrics, from which the schedules are then
    updated.
    """
    line: dict[str, float] = {}
    for role, update in updates.items():
        meter = Meter()
        line[f"{role}/loss"] = measure(
            learners[role], update, groups, tokens=tokens, backward=True, meter=meter
        )
        line |= {f"{role}/{name}": value for name, value in meter.means().items()}
        try:
            line |= {f"{role}/{name}": value for name, value in learners[role].step().items()}
        except TrainingError as error:  # the learner does not know the prompt ids
            raise TrainingError(
                f"{error} (prompts {_first_ids(group.prompt.id for group in groups)})"
            ) from error
        for part in update:
            for schedule in part.memories().values():
                schedule.update(line)
    return line


def fit(
    learners: Mapping[str, Learner],
    updates: Mapping[str, Sequence[Part]],
    groups: Sequence[Group],
    options: Mapping[str, Any],
    *,
    tokens: int,
    seed: int,
    progress: Path,
    metrics: Path,
    validation: Sequence[Group] = (),
) -> dict[str, Any]:
    """Train every role on `groups`; resumes bit for bit from the latest checkpoint in `progress`. Returns a
    summary.

    `options` is the `fit` section of the resolved recipe; `tokens` the micro-batch size in tokens. `metrics`
    receives one JSON line per step. With `validation`, stops early after `patience` validations without
    improvement and restores the best weights.
    """
    if not groups:
        raise TrainingError(
            "nothing to train on: the data set is empty after selection; see the counts of the stage before"
        )
    planned = steps_planned(len(groups), options)
    state: dict[str, Any] = {"step": 0, "best": None, "best_step": 0, "bad": 0, "stopped": False, "tokens": 0}
    remembered = memories(updates)
    checkpoint = latest(progress)
    if checkpoint:
        state = load_checkpoint(checkpoint, learners, remembered)
    log = Log(metrics, after=state["step"])
    started = saved = time.monotonic()
    while state["step"] < planned and not state["stopped"]:
        chosen = step_groups(groups, options, state["step"], seed)
        began = time.monotonic()
        line = one_step(learners, updates, chosen, tokens=tokens)
        line["tokens_per_second"] = sum(len(t.mask) for g in chosen for t in g.trajectories) / (
            time.monotonic() - began
        )
        state["step"] += 1
        state["tokens"] += sum(sum(t.mask) for g in _rows(chosen, trained=True) for t in g.trajectories)
        line["trainable_tokens"] = state["tokens"]
        due = options["validate_every"] and state["step"] % options["validate_every"] == 0
        if validation and (due or state["step"] == planned):
            line |= _validate(learners, updates, validation, options, state, planned, tokens, progress)
        log(line, state["step"], planned)
        if state["step"] < planned and save_is_due(options["save_every"], state["step"], saved):
            save_checkpoint(progress, state, learners, remembered)
            saved = time.monotonic()
    check_step_counts(learners, state["step"], state["step"] if state["stopped"] else planned, state["step"])
    if validation and state["best_step"] and state["best_step"] != state["step"]:
        best = load_state(progress / "best")
        for role, learner in learners.items():
            learner.restore(best[role])
    seconds = time.monotonic() - started
    return {**_summary(state, planned), "seconds": round(seconds, 1), **log.last}


def _summary(state: Mapping[str, Any], planned: int) -> dict[str, Any]:
    return {
        "steps": state["step"],
        "steps_planned": planned,
        "stopped_early": state["stopped"],
        "best_step": state["best_step"] or state["step"],
        "best_validation_loss": state["best"],
        "trainable_tokens": state["tokens"],
    }


def _validate(
    learners: Mapping[str, Learner],
    updates: Mapping[str, Sequence[Part]],
    validation: Sequence[Group],
    options: Mapping[str, Any],
    state: dict[str, Any],
    planned: int,
    tokens: int,
    progress: Path,
) -> dict[str, float]:
    line: dict[str, float] = {}
    for role, update in updates.items():
        meter = Meter()
        line[f"validation/{role}/loss"] = measure(
            learners[role], update, validation, tokens=tokens, backward=False, meter=meter
        )
        line |= {f"validation/{role}/{name}": value for name, value in meter.means().items()}
    loss = sum(v for k, v in line.items() if k.count("/") == 2 and k.endswith("/loss"))
    if state["best"] is None or loss < state["best"]:
        state.update(best=loss, best_step=state["step"], bad=0)
        if state["step"] < planned:  # after the last step there is nothing to come back from
            best = {role: learner.state() for role, learner in learners.items()}
            if ranks.first():
                save_state(progress / "best", best)
    else:
        state["bad"] += 1
        state["stopped"] = bool(options["patience"]) and state["bad"] >= options["patience"]
    return line
