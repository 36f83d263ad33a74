"""Training stages: `sft` (supervised fine-tuning) and `optimise` (training on selected groups)."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.components.data.groups import read_groups
from ratchet.components.data.lazy_groups import is_lazy
from ratchet.components.data.step_values import compact
from ratchet.components.errors import ContractError, DataError, GateError
from ratchet.components.models.load import load_tokenizer
from ratchet.components.piece import build
from ratchet.components.stages.job import Job
from ratchet.components.stages.probe import probe, verify_saved, weights_precision
from ratchet.components.text.chat import count_tokens, encode_group
from ratchet.components.training import ranks
from ratchet.components.training.deepspeed import DeepSpeedLearner
from ratchet.components.training.objectives import memories, parts
from ratchet.components.training.rounds import restore_memories, save_memories
from ratchet.components.training.steps import steps_planned
from ratchet.components.training.torch import TorchLearner
from ratchet.components.training.trainer import fit
from ratchet.components.types import Group

if TYPE_CHECKING:
    from ratchet.components.text.tokenizer import Tokenizer

WARN_LOST = 0.05
"""Warn if more than this share of records is too long."""
MEASURED = 256
"""Number of records measured for the warning."""


def sft(job: Job) -> dict[str, Any]:
    """Supervised fine-tuning: maximum likelihood with a loss mask on assistant tokens; early stopping on
    validation loss.
    """
    options = job.options
    tokenizer = load_tokenizer(job.path("policy"))
    groups, counts, warnings = encoded(job, options["where"], tokenizer)
    validation: list[Group] = []
    if options["validation"]:
        validation, more, worse = encoded(job, options["where"], tokenizer, "validation")
        counts |= {f"validation {what}": number for what, number in more.items()}
        warnings += worse
    return {"counts": counts, "warnings": warnings, **learn(job, job.path("policy"), groups, validation)}


def optimise(job: Job) -> dict[str, Any]:
    """Train on tokenised, scored and selected groups. A round rolled back by a health rule keeps the
    policy before the last update.
    """
    if "annotated" in job.inputs and job.inputs["annotated"].meta.get("verdict") == "roll_back":
        well = (
            "policy" if job.inputs["policy"].meta.get("rolled_back") else "previous"
        )  # rolled back twice in a row: `previous` is the rejected one
        ranks.once(
            lambda: shutil.copytree(
                job.path(well),
                job.work.product,
                dirs_exist_ok=True,
                ignore=shutil.ignore_patterns("manifest.json", "metrics.jsonl"),
            )
        )
        return {"rolled_back": True, "why": job.inputs["annotated"].meta["verdicts"]}
    groups = read_groups(job.path("groups") / "groups.parquet")
    # the policy that a later round starts from is the product of the round before
    before = job.path("policy") if job.options.get("round", 1) > 1 else None
    return learn(job, job.path("policy"), groups, [], before=before)


def learn(
    job: Job,
    policy: Path,
    groups: Sequence[Group],
    validation: Sequence[Group],
    *,
    kind: str = "policy",
    inspect: Callable[[Any], None] | None = None,
    inspect_saved: Callable[[Any], None] | None = None,
    before: Path | None = None,
) -> dict[str, Any]:
    """Fit, save as a model directory, reload and compare, and check that answers end. `inspect` is called
    with the trained learner on every rank, `inspect_saved` with the reloaded model on rank 0. Schedules of
    objectives continue from the product `before`.
    """
    options, profile = job.options["fit"], job.options["profile"]
    planned = steps_planned(len(groups), options)
    learner = make_learner(policy, kind, options, profile, planned, round(planned * options["warmup"]))
    updates = {role: parts(specs) for role, specs in options["updates"].items()}
    schedules = memories(updates)
    if before is not None:
        restore_memories(schedules, before)
    summary = fit(
        dict.fromkeys(updates, learner),
        updates,
        groups,
        options,
        tokens=profile["tokens_per_microbatch"],
        seed=job.options["seed"],
        progress=job.work.progress,
        metrics=job.work.metrics,
        validation=validation,
    )
    learner.save(job.work.product)
    save_memories(schedules, job.work.product)
    if isinstance(learner, TorchLearner):
        learner.release_optimiser()  # before the saved model is read beside it
    summary["reload_difference"] = verify_saved(
        job.work.product,
        learner,
        groups[:4],
        kind=kind,
        tokens=profile["tokens_per_microbatch"],
        precision=weights_precision(profile),
        inspect=inspect_saved,
    )
    if inspect is not None:
        inspect(learner)
    if kind != "reward":
        summary["probe"] = probe(
            job.work.product,
            learner,
            groups[:8],
            profile,
            seed=job.options["seed"],
            min_ended=options["min_ended"],
        )
    return summary


def make_learner(
    path: Path,
    kind: str,
    fit_options: Mapping[str, Any],
    profile: Mapping[str, Any],
    total: int,
    warmup: float,
) -> TorchLearner | DeepSpeedLearner:
    """The learner of a profile with the optimizer settings of a fit. `total`: length of the learning-rate
    schedule, in updates or in rounds; `warmup`: of its warmup.
    """
    options: dict[str, Any] = {
        "kind": kind,
        "adapter": build("adapter", fit_options["adapter"]),
        "learning_rate": fit_options["learning_rate"],
        "betas": tuple(fit_options["betas"]),
        "weight_decay": fit_options["weight_decay"],
        "max_grad_norm": fit_options["max_grad_norm"],
        "schedule": fit_options["schedule"],
        "warmup": warmup,
        "total": total,
        "gradient_checkpointing": profile["gradient_checkpointing"],
        "threads": profile["threads"],
    }
    if profile["learner"] == "torch":
        return TorchLearner(path, **options)
    zero = {
        key: profile[key] for key in ("zero_stage", "offload_optimizer", "offload_parameters", "precision")
    }
    return DeepSpeedLearner(path, **options, **zero)


def encoded(
    job: Job, section: str, tokenizer: Tokenizer, part: str = "data", *, source: str = "data"
) -> tuple[list[Group], dict[str, int], list[str]]:
    """Tokenised groups of the split that a recipe section names as `data` or `validation`, from the input
    `source`, up to the section's limit; counts of records, kept, cut (truncated), dropped (too long) and over
    the limit; warnings. `GateError` if the dropped share exceeds the section's `max_dropped`.
    """
    options = job.options
    split, max_tokens, limit = (
        options[part],
        options["max_tokens"],
        options.get("limit" if part == "data" else f"limit_{part}"),
    )
    if part == "validation" and "validation_data" in job.inputs:
        source = "validation_data"
    file = job.path(source) / f"{split}.parquet"
    if not file.exists():
        raise ContractError(
            f"there is no data set {split!r} in {file.parent}; available: "
            f"{sorted(p.stem for p in file.parent.glob('*.parquet'))}"
        )
    records, groups, outcomes = read_groups(file), [], Counter()
    for group in records:
        if limit and len(groups) >= limit:
            break
        done, outcome = encode_group(tokenizer, group, max_tokens)
        outcomes[outcome] += 1
        if done is not None:
            groups.append(compact(done) if is_lazy(records) else done)
    counts = {
        "records": len(records),
        "kept": len(groups),
        "cut": outcomes["cut"],
        "dropped": outcomes["dropped"],
        "over the limit": len(records) - outcomes.total(),
    }
    lost, most = outcomes["dropped"] / max(1, outcomes.total()), options["max_dropped"]
    message = (
        f"{section}.max_tokens: {outcomes['dropped']} of {outcomes.total()} records of split {split!r} "
        f"({lost:.1%}) are longer than {max_tokens} tokens and "
        f"dropped{_percentile(records, tokenizer) if outcomes['dropped'] else ''}"
    )
    if most is not None and lost > most:
        raise GateError(
            f"{message}; at most {most:.1%} may be dropped ({section}.max_dropped). Raise "
            f"{section}.max_tokens, or {section}.max_dropped"
        )
    if not groups:
        raise DataError(
            f"{file}: no record is left after tokenisation ({counts}); raise {section}.max_tokens (now "
            f"{max_tokens}) or check the data"
            if records
            else f"{section}: split {split!r} is empty, {file} has no record. `ratchet show` counts what the "
            "stage that made it left out (ties, say); more prompts, or more answers to each, leave more"
        )
    return (
        groups,
        counts,
        [f"{message}; raise {section}.max_tokens if they matter"] if lost > WARN_LOST else [],
    )


def _percentile(records: Sequence[Group], tokenizer: Tokenizer) -> str:
    """The 95th percentile of record lengths in tokens, from the first records."""
    longest = sorted(
        max(count_tokens(tokenizer, [*group.prompt.messages, *path.messages]) for path in group.trajectories)
        for group in records[:MEASURED]
    )
    return f" (95% have at most {longest[math.ceil(0.95 * len(longest)) - 1]})"
