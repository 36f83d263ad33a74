"""Numbers that claims compare, read from the products of finished runs: values of a metric per prompt or
seed, training curves, and budgets.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ratchet.components.errors import DataError, nearest
from ratchet.components.recipes.arms import final_arm
from ratchet.components.recipes.phases import sections
from ratchet.components.recipes.plan import Stage
from ratchet.components.recipes.schema_claim import Claim
from ratchet.tasks.pipeline import Pipeline

Values = tuple[list[float], list[float], Any]


def values(claim: Claim, own: Sequence[Pipeline], baseline: Sequence[Pipeline] | None) -> Values:
    """Per seed the value of the recipe and of its baseline, and their differences: (seeds, prompts) with
    `per: prompt`, else one per seed. `baseline` None: the recipe's own start, or with `per:
    seed` zero. `DataError` for a metric that was not measured, or other prompts in both arms.
    """
    if claim.per != "prompt":
        read = _curve if claim.per == "curve" else _scalar
        mine = [read(claim, run) for run in own]
        theirs = [read(claim, run) for run in baseline] if baseline is not None else [0.0] * len(mine)
        return mine, theirs, [a - b for a, b in zip(mine, theirs, strict=True)]
    results = [results_of(run) for run in own]
    rows = np.array([_per_prompt(seed, claim.metric) for seed in results])
    if baseline is None:
        gains = np.array([_gain(seed, claim.metric) for seed in results])
        return _means(rows), _means(rows - gains), gains
    baseline_results = [results_of(run) for run in baseline]
    for mine, theirs, run, other in zip(results, baseline_results, own, baseline, strict=True):
        if held_out(mine, run) != held_out(theirs, other):
            raise DataError(
                f"{mine['recipe']} and {theirs['recipe']} were evaluated on different prompts, which "
                "cannot be paired; give both the same `data` and `evaluate`, or set claim.per to seed"
            )
    theirs = np.array([_per_prompt(seed, claim.metric) for seed in baseline_results])
    return _means(rows), _means(theirs), rows - theirs


def results_of(pipeline: Pipeline) -> dict[str, Any]:
    """results.json of the run's last report."""
    return json.loads((pipeline.artifact(report_of(pipeline).name).path / "results.json").read_text())


def report_of(pipeline: Pipeline) -> Stage:
    """The stage that writes results.json. `DataError` if the recipe evaluates nothing."""
    for stage in reversed(pipeline.stages.values()):
        if stage.kind == "report":
            return stage
    raise DataError(f"{pipeline.recipe.name} has no evaluation; add a section `evaluate`")


def _means(rows: np.ndarray) -> list[float]:
    return [float(value) for value in rows.mean(1)]


def held_out(results: dict[str, Any], pipeline: Pipeline) -> Any:
    """What identifies the held-out prompts: their number and the first ones. A method may add a system
    message, so these do not count. Results without transcripts show no prompts; what they were drawn from
    stands for them.
    """
    count = len(next(iter(results["per_prompt"].values()), ()))
    if shown := [one["prompt"] for one in results.get("transcripts", ())]:
        return count, [[message for message in prompt if message["role"] != "system"] for prompt in shown]
    report = report_of(pipeline)
    arms = report.options["arms"]
    return count, pipeline.stages[report.inputs["data"]].key, arms[final_arm(arms)]["data"]


def _per_prompt(results: dict[str, Any], metric: str) -> list[float]:
    known = results["per_prompt"]
    if metric not in known:
        raise DataError(f"{results['recipe']} measures no {metric!r} for each prompt{nearest(metric, known)}")
    return known[metric]


def _gain(results: dict[str, Any], metric: str) -> list[float]:
    """Difference of each prompt's score to the policy before training: after SFT if there is one."""
    score, known = metric.removeprefix("final."), results["per_prompt"]
    for name in (f"{score}_gain", f"{score}_gain_base"):
        if name in known:
            return known[name]
    raise DataError(f"{results['recipe']} measures no gain in {score!r} over its start")


def _scalar(claim: Claim, pipeline: Pipeline) -> float:
    results = results_of(pipeline)
    known = results["metrics"]
    for name in (claim.metric, f"{claim.metric}.mean"):
        if name in known:
            return float(known[name])
    raise DataError(f"{results['recipe']} measures no {claim.metric!r}{nearest(claim.metric, known)}")


def _curve(claim: Claim, pipeline: Pipeline) -> float:
    """The mean of the logged values, or the number of logged steps until they reach `level`. A curve that
    never does counts one step more than it has.
    """
    logged_values = [line[claim.metric] for _, line in logged(pipeline) if claim.metric in line]
    if not logged_values:
        known = sorted({name for _, line in logged(pipeline) for name in line})
        raise DataError(f"{pipeline.recipe.name} logs no {claim.metric!r}{nearest(claim.metric, known)}")
    if claim.level is None:
        return float(np.mean(logged_values))
    return float(
        next((i for i, value in enumerate(logged_values, 1) if value >= claim.level), len(logged_values) + 1)
    )


def logged(pipeline: Pipeline) -> Iterator[tuple[Stage, dict[str, float]]]:
    """Lines of the training logs (metrics.jsonl) of all stages, in the order of the plan."""
    for stage in pipeline.stages.values():
        file = pipeline.store.path(stage.name, stage.key) / "metrics.jsonl"
        for text in file.read_text().splitlines() if file.exists() else ():
            yield stage, json.loads(text).get("metrics", {})


def budgets(
    what: str, own: Sequence[Pipeline], baseline: Sequence[Pipeline]
) -> tuple[float | None, float | None]:
    """Means over seeds of what an arm used of a budget."""
    measure = {"updates": updates, "tokens": tokens, "labels": labels}[what]
    mine, theirs = (float(np.mean([measure(one) for one in arm])) for arm in (own, baseline))
    return mine, theirs


def _learning(pipeline: Pipeline) -> Iterator[tuple[Stage, dict[str, Any]]]:
    """Stages that train the policy, with the metadata of their products; not those of phases that train
    another model (`advance: false`: a corrector, a refiner, a controller).
    """
    others = {phase.name for phase in sections(pipeline.recipe) if phase.trains_policy and not phase.advances}
    for stage in pipeline.stages.values():
        if stage.name in others:
            continue
        meta = pipeline.artifact(stage.name).meta if stage.kind == "weights" else {}
        if "steps" in meta and stage.does not in ("reward", "gold"):
            yield stage, dict(meta)


def updates(pipeline: Pipeline) -> float:
    """Optimiser steps of the policy."""
    return float(sum(meta.get("updates", meta["steps"]) for _, meta in _learning(pipeline)))


def tokens(pipeline: Pipeline) -> float:
    """Tokens that the policy was trained on; with on-policy steps, tokens that it sampled."""
    trained = {stage.name for stage, _ in _learning(pipeline)}
    sampled, learned = 0.0, dict[str, float]()
    for stage, line in logged(pipeline):
        if stage.name not in trained:
            continue
        if "trainable_tokens" in line:  # those of the stage so far
            learned[stage.name] = line["trainable_tokens"]
        else:
            sampled += line.get("rollout/responses", 0) * line.get("rollout/length", 0)
    return sampled + sum(learned.values())


def labels(pipeline: Pipeline) -> float:
    """Judgements of people or a verifier: labelled pairs and answers that the policy or a reward model
    learned from, and without a reward model the scored answers of the policy.
    """
    kept: dict[str, list[float]] = {"reward": [], "prepare_offline": []}
    for stage in pipeline.stages.values():
        if stage.does in kept:
            kept[stage.does].append(pipeline.artifact(stage.name).meta.get("counts", {}).get("kept", 0))
    judged, read = max(kept["reward"], default=0), sum(kept["prepare_offline"])
    return float(judged + read + (0 if judged else _answered(pipeline)))


def _answered(pipeline: Pipeline) -> float:
    """Answers of the policy in on-policy steps and in rounds."""
    stages = [stage for stage in pipeline.stages.values() if stage.does == "rollout"]
    in_rounds = (pipeline.artifact(one.name).meta.get("counts", {}).get("responses", 0) for one in stages)
    return sum(line.get("rollout/responses", 0) for _, line in logged(pipeline)) + sum(in_rounds)
