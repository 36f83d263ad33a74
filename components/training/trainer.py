"""`fit`: the training loop of every objective and role. It contains no method-specific code.

One step: pack units into micro-batches → count denominators over the whole step → means declared by
objectives (`means`, without gradients) → forward for the requested outputs → weighted, reduced terms →
backward (all in `step_loss.py`) → optimizer step → schedules update from the metrics → log → checkpoint.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.components.errors import TrainingError
from ratchet.components.storage.checkpoints import Log, latest, load_checkpoint, save_checkpoint
from ratchet.components.storage.state import load_state, save_state
from ratchet.components.training import ranks
from ratchet.components.training.objectives import Meter, Part, memories
from ratchet.components.training.postconditions import check_step_counts
from ratchet.components.training.step_loss import first_ids, measure, trained_rows
from ratchet.components.training.steps import save_is_due, step_groups, steps_planned
from ratchet.components.types import Group

if TYPE_CHECKING:
    from ratchet.components.protocols import Learner


def one_step(
    learners: Mapping[str, Learner],
    updates: Mapping[str, Sequence[Part]],
    groups: Sequence[Group],
    *,
    tokens: int,
    at: tuple[float, float] | None = None,
) -> dict[str, float]:
    """One optimizer step of every role on `groups`; `at`: its place in the learning-rate schedules, as of
    `Learner.step`. Returns the metrics, from which the schedules are then updated.
    """
    line: dict[str, float] = {}
    for role, update in updates.items():
        meter = Meter()
        line[f"{role}/loss"] = measure(
            learners[role], update, groups, tokens=tokens, backward=True, meter=meter
        )
        line |= {f"{role}/{name}": value for name, value in meter.means().items()}
        without = {f"{role}/{name}": math.nan for name, number in meter.counts.items() if not number}
        try:
            line |= {f"{role}/{name}": value for name, value in learners[role].step(at).items()}
        except TrainingError as error:  # the learner does not know the prompt ids
            raise TrainingError(
                f"{error} (prompts {first_ids(group.prompt.id for group in groups)})"
            ) from error
        for part in update:
            for schedule in part.memories().values():
                schedule.update({**without, **line})
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
    state["learned"] = False  # whether an objective had a row in any step
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
        state["learned"] |= _has_rows(updates, line)
        line["tokens_per_second"] = sum(len(t.mask) for g in chosen for t in g.trajectories) / (
            time.monotonic() - began
        )
        state["step"] += 1
        state["tokens"] += sum(
            sum(t.mask) for g in trained_rows(chosen, trained=True) for t in g.trajectories
        )
        line["trainable_tokens"] = state["tokens"]
        due = options["validate_every"] and state["step"] % options["validate_every"] == 0
        if validation and (due or state["step"] == planned):
            line |= _validate(learners, updates, validation, options, state, planned, tokens, progress)
        log(line, state["step"], planned)
        if state["step"] < planned and save_is_due(options["save_every"], state["step"], saved):
            save_checkpoint(progress, state, learners, remembered)
            saved = time.monotonic()
    check_step_counts(learners, state["step"], state["step"] if state["stopped"] else planned, state["step"])
    if state["step"] and not state["learned"]:
        raise TrainingError(f"nothing was learned: {_nowhere(updates)} in any of the {state['step']} steps")
    if validation and state["best_step"] and state["best_step"] != state["step"]:
        best = load_state(progress / "best")
        for role, learner in learners.items():
            learner.restore(best[role])
    seconds = time.monotonic() - started
    return {**_summary(state, planned), "seconds": round(seconds, 1), **log.last}


def _has_rows(updates: Mapping[str, Sequence[Part]], line: Mapping[str, float], where: str = "") -> bool:
    """Whether a row entered one of the losses in a line of metrics."""
    return any(f"{where}{role}/{p.label}/loss" in line for role, update in updates.items() for p in update)


def _nowhere(updates: Mapping[str, Sequence[Part]]) -> str:
    columns = sorted({part.where for update in updates.values() for part in update if part.where})
    if not columns:
        return "no row, pair or group has trainable tokens in all its answers"
    return f"no row has a positive {' or '.join(columns)} (`where` of the objectives)"


def _summary(state: Mapping[str, Any], planned: int) -> dict[str, Any]:
    return {
        "steps": state["step"],
        "steps_planned": planned,
        "stopped_early": state["stopped"] and state["step"] < planned,
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
    if not _has_rows(updates, line, "validation/"):
        raise TrainingError(f"there is no validation loss: {_nowhere(updates)} in the validation data")
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
