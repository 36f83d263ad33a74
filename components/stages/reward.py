"""Stage `reward`: Bradley-Terry reward model on preference pairs, with the certificate that online training
requires.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ratchet.components.data.groups import by_prompt, read_groups
from ratchet.components.evaluation import plots
from ratchet.components.evaluation.best_of_n import accuracy_within_prompts, best_of_n
from ratchet.components.evaluation.bootstrap import Interval
from ratchet.components.evaluation.certificate import accuracy_by_kind, certify
from ratchet.components.evaluation.certificate_statistics import (
    conversations_of,
    independent,
    prompts_of,
    share,
)
from ratchet.components.evaluation.linear import bradley_terry, choose_penalty, topics_of
from ratchet.components.inference.answers import reward_model_scores
from ratchet.components.inference.torch import TorchEngine
from ratchet.components.models.forward import reward_states
from ratchet.components.models.load import load_tokenizer, new_reward, save_model
from ratchet.components.models.products import product_precision
from ratchet.components.models.reward import MeanReward
from ratchet.components.stages import progress
from ratchet.components.stages.job import Job
from ratchet.components.stages.probe import RELOAD_TOLERANCE, weights_precision
from ratchet.components.stages.train import encoded, learn
from ratchet.components.storage.store import write_atomic
from ratchet.components.text.images import images_of
from ratchet.components.training import ranks
from ratchet.components.training.packing import pack
from ratchet.components.training.reward_columns import reward_columns
from ratchet.components.training.steps import steps_planned
from ratchet.components.types import Context, Group, Prompt, Trajectory

if TYPE_CHECKING:
    from ratchet.components.text.tokenizer import Tokenizer

PENALTIES = (1.0, 3.0, 10.0, 30.0, 100.0)
RESCORED = 8
"""Held-out pairs scored three times: by the model in memory, after reloading, and unbatched."""


def reward(job: Job) -> dict[str, Any]:
    """Train member `member` of the reward models, certify it on held-out pairs, and plot the certificate."""
    options = job.options
    seed = options["seed"] + 1000 * options["member"]
    tokenizer = load_tokenizer(job.path("policy"))
    pairs, counts, warnings = encoded(job, options["where"], tokenizer)
    if "also" in job.inputs:  # held-out pairs stay those of `validation`
        others, read, more = encoded(job, options["where"], tokenizer, "also", source="also")
        pairs, counts, warnings = (
            pairs + others,
            counts | {f"also {what}": number for what, number in read.items()},
            warnings + more,
        )
    held_out, more, worse = encoded(job, options["where"], tokenizer, "validation")
    counts |= {f"validation {what}": number for what, number in more.items()}
    answers, truth = verified_answers(job)
    if not steps_planned(len(pairs), options["fit"]):  # otherwise the fit reports its steps
        read = texts_of(held_out)[0] + (texts_of(pairs)[0] if options["linear_probe"] else [])
        progress.expect(
            "texts",
            sum(len(family.trajectories) for family in [*read, *answers]) + 2 * len(held_out[:RESCORED]),
        )
    start, probe = ranks.once(lambda: begin(job, pairs, tokenizer, seed))
    members = dataclasses.replace(job, options={**options, "seed": seed})
    profile, trained, padding = options["profile"], list[list[float]](), dict[str, Any]()
    summary = learn(
        members,
        start,
        by_prompt(pairs) if options["by_prompt"] else pairs,
        held_out,
        kind="reward",
        inspect=lambda learner: trained.extend(
            score_in_memory(learner, held_out[:RESCORED], profile["tokens_per_microbatch"])
        ),
        inspect_saved=lambda saved: padding.update(saved.padding(uneven(held_out[:RESCORED]))),
    )
    right = probe["cross_validated"] if probe else None
    crossed = None if right is None else share(right, independent(len(pairs), conversations_of(pairs)))
    limits = limits_of(options)
    certificate = ranks.once(
        lambda: examine(
            job.work.product,
            held_out,
            trained,
            limits,
            threads=profile["threads"],
            cross_validated=crossed,
            answers=answers,
            truth=truth,
            **padding,
        )
    )
    if ranks.first():
        write_atomic(job.work.product / "certificate.json", json.dumps(certificate, indent=1))
        plots.certificate(certificate, job.work.product / "plots")
    return {
        "counts": counts,
        "warnings": warnings + worse,
        "linear_probe": probe,
        **summary,
        "certificate": certificate,
    }


def limits_of(options: Mapping[str, Any]) -> dict[str, Any]:
    """The certificate's limits, with the reload tolerance widened to the precision of the learner's
    weights.
    """
    limits = dict(options["certificate"])
    if limits.get("reload_tolerance", 0.0) is not None:
        limits["reload_tolerance"] = max(
            limits.get("reload_tolerance", 0.0), RELOAD_TOLERANCE[weights_precision(options["profile"])]
        )
    return limits


def verified_answers(job: Job) -> tuple[Sequence[Group], str]:
    """The base model's answers on the validation split of the demonstrations, and the column of their true
    values (the last reward written). Empty if there are no demonstrations, no verifier, or one answer per
    prompt.
    """
    truth = (reward_columns(job.options.get("verified_by", ())) or [""])[-1]
    groups = (
        read_groups(job.path("answers") / "answers_validation.parquet")
        if "answers" in job.inputs and truth
        else []
    )
    return ([] if max((len(g.trajectories) for g in groups), default=0) < 2 else groups), truth


def begin(
    job: Job, pairs: Sequence[Group], tokenizer: Tokenizer, seed: int
) -> tuple[Path, dict[str, Any] | None]:
    """The initial reward model, saved atomically, and the results of the linear probe."""
    start, options = job.work.progress / "start", job.options
    found = start / "linear_probe.json"
    if not start.exists():
        model = new_reward(job.path("policy"), layers=options["layers"], pool=options["pool"], seed=seed)
        probe = (
            linear_probe(model, pairs, tokens=options["profile"]["tokens_per_microbatch"])
            if options["linear_probe"]
            else None
        )
        beside = start.with_name("start.partial")
        save_model(model, tokenizer, beside)
        (beside / found.name).write_text(json.dumps(probe))
        beside.replace(start)
    return start, json.loads(found.read_text())


def linear_probe(model: Any, pairs: Sequence[Group], *, tokens: int) -> dict[str, Any]:
    """Set the head to the Bradley-Terry optimum on standardised features of the frozen backbone, with an L2
    penalty chosen by cross-validation over topics. Each text, and each shared prefix, is processed once.
    Deterministic.
    """
    families, rows = texts_of(pairs)
    with torch.inference_mode():
        states = (
            torch.cat(
                [
                    reward_states(model, batch)
                    for batch in progress.counted(pack(families, unit="group", tokens=tokens))
                ]
            )
            .double()
            .numpy()
        )
    centre, scale = states.mean(0), np.maximum(states.std(0), 1e-6)
    differences = (states[rows[:, 0]] - states[rows[:, 1]]) / scale
    penalty, right = choose_penalty(differences, topics_of(pairs), PENALTIES)
    weight = bradley_terry(differences, penalty)
    with torch.no_grad():
        if isinstance(model, MeanReward):
            model.score.centre.copy_(torch.from_numpy(centre))
            model.score.scale.copy_(torch.from_numpy(scale))
            model.score.weight.copy_(torch.from_numpy(weight))
        else:
            model.score.weight.copy_(torch.from_numpy(weight / scale))
    return {"penalty": penalty, "cross_validated": right, "texts": len(states)}


def texts_of(pairs: Sequence[Group]) -> tuple[list[Group], np.ndarray]:
    """The distinct texts of the pairs with the images that they are about, grouped by conversation (they
    share a prefix), and for each pair the indices of its texts (N, 2).
    """
    families: dict[Any, tuple[Prompt, dict[Any, Trajectory]]] = {}
    read = [[_text(pair, trajectory) for trajectory in pair.trajectories] for pair in pairs]
    for pair, keys in zip(pairs, read, strict=True):
        for trajectory, (tokens, images) in zip(pair.trajectories, keys, strict=True):
            family = trajectory.meta.get("conversation", tokens), images
            families.setdefault(family, (pair.prompt, {}))[1][tokens, images] = trajectory
    number = {key: i for i, key in enumerate(key for _, family in families.values() for key in family)}
    groups = [Group(prompt, tuple(family.values())) for prompt, family in families.values()]
    return groups, np.array([[number[key] for key in keys] for keys in read])


def _text(pair: Group, trajectory: Trajectory) -> tuple[tuple[int, ...], tuple[str, ...]]:
    return tuple(trajectory.inputs["tokens"]), images_of(pair.prompt)


@product_precision("float32")
def examine(
    path: Path,
    pairs: Sequence[Group],
    trained: Sequence[Sequence[float]],
    limits: Any,
    *,
    threads: int | None,
    cross_validated: Interval | None = None,
    answers: Sequence[Group] = (),
    truth: str = "",
    **padding: Any,
) -> dict[str, Any]:
    """Certificate of a saved reward model on held-out pairs, reloaded as online training will load it.
    `trained`: scores of the first pairs by the model in memory; `padding`: result of `SavedReward.padding`.
    Best-of-n is measured on `answers`, with true values in column `truth`.
    """
    engine = TorchEngine(path, kind="reward", threads=threads)
    alone = [score(engine, [pair])[0] for pair in pairs[:RESCORED]]
    lengths = [[sum(t.mask) for t in pair.trajectories] for pair in pairs]
    scores = score(engine, pairs)
    by_kind, best = accuracy_by_kind(scores, pairs), None
    if answers:
        rated, truths = (
            reward_model_scores(answers, Context({"reward_model": engine}), "reward_model")[0],
            [g.columns[truth] for g in answers],
        )
        best, sampled = best_of_n(rated, truths), accuracy_within_prompts(rated, truths)
        by_kind |= {"sampled": sampled} if sampled else {}
    return certify(
        scores=scores,
        by_kind=by_kind,
        best_of_n=best,
        lengths=lengths,
        trained=trained,
        alone=alone,
        conversations=conversations_of(pairs),
        prompts=prompts_of(pairs),
        cross_validated=cross_validated,
        limits=limits,
        **padding,
    )


def uneven(pairs: Sequence[Group]) -> list[Group]:
    """The shortest and the longest pair, which need the most padding together."""
    ordered = sorted(pairs, key=lambda pair: max(len(t.inputs["tokens"]) for t in pair.trajectories))
    return [ordered[0], ordered[-1]]


@product_precision("float32")
def score_in_memory(learner: Any, pairs: Sequence[Group], tokens: int) -> list[list[float]]:
    """Chosen and rejected score of each pair by the learner's model."""
    with torch.no_grad():
        return [
            learner(batch, frozenset({"scores"})).scores.tolist()
            for pair in pairs
            for batch in pack([pair], unit="group", tokens=tokens)
        ]


def score(engine: TorchEngine, pairs: Sequence[Group]) -> list[list[float]]:
    """Chosen and rejected score of each pair."""
    families, rows = texts_of(pairs)
    scores = np.array(
        [score for family in engine.score(families, frozenset({"scores"})) for score in family["scores"]]
    )
    return scores[rows].tolist()
