"""Stage `evaluate`: scores and compares the answers of the arms to the held-out prompts: metrics, win rates,
gates, report.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping, Sequence
from typing import Any

from ratchet.components.data.groups import read_groups
from ratchet.components.evaluation.encoder import Encoder
from ratchet.components.evaluation.fluency import perplexity, perplexity_ratio
from ratchet.components.evaluation.gates import check_gates
from ratchet.components.evaluation.gold import GoldMeasure
from ratchet.components.evaluation.quality import flattened
from ratchet.components.evaluation.report import write_report
from ratchet.components.evaluation.results import (
    Scored,
    contrast,
    describe_quality,
    has_logprobs,
    headline,
    kl_to,
    summarise,
    transcripts,
)
from ratchet.components.evaluation.scoring import (
    describe_answers,
    human_logprobs,
    measures_of,
    reports_of,
    rewards_of,
    scores_of,
    settled,
)
from ratchet.components.recipes.arms import key_of, title_of
from ratchet.components.stages import progress
from ratchet.components.stages.engines import LazyMapping, SingleModelEngine
from ratchet.components.stages.experience import certificate_of, context_of
from ratchet.components.stages.job import Job
from ratchet.components.stages.overlay import Overlay
from ratchet.components.storage.store import write_atomic
from ratchet.components.text.contract import context_length
from ratchet.components.training.loop import texts_read
from ratchet.components.types import Context, Group


def evaluate(job: Job) -> dict[str, Any]:
    """Write results.json, plots and report.html; return the headline metrics."""
    options = job.options
    splits = {name: arm["data"] for name, arm in options["arms"].items()}
    rows = {
        split: read_groups(job.path("data") / f"{split}.parquet") for split in dict.fromkeys(splits.values())
    }
    held_out = {split: groups[: options["prompts"]] for split, groups in rows.items()}
    certificates = {name: found for name in options["reward_models"] if (found := certificate_of(job, name))}
    certified = [name for name, found in certificates.items() if found["passed"]]
    scored, human, counts = score(job, splits, held_out, certified)
    results = {
        "recipe": options["recipe"],
        "about": options["about"],
        "arms": {title_of(arm): numbers for arm, numbers in scored.numbers.items()},
        "rounds": [
            {"round": i, **job.inputs[f"scored_{i}"].meta["round_metrics"]} for i in job.rounds("scored_")
        ],
        "per_prompt": scored.per_prompt(),
        "metrics": {},
    }
    compare(job, results, scored, human, certified)
    results["verdict"] = check_gates(results["metrics"], options["gates"])
    results["certificates"] = certificates
    results["pairs_from"] = "verifier" if options["resolved"].get("demonstrate") else "people"
    results["gold"] = job.inputs["gold"].meta["certificate"] if "gold" in job.inputs else None
    results["lengths"] = {
        title_of(arm): [sum(t.mask) for g in groups for t in g.trajectories]
        for arm, groups in scored.answers.items()
    }
    results["curves"] = curves(job)
    results["lineage"] = [
        {"name": name, "kind": a.kind, "digest": a.digest[:16]} for name, a in job.inputs.items()
    ]
    summary = job.path("data") / "summary.json"
    results["sources"] = (json.loads(summary.read_text()) if summary.exists() else {}).get("sources")
    results["configuration"] = options["resolved"]
    results["transcripts"] = transcripts(scored, options["transcripts"], options["by"], results["measure"])
    write_atomic(job.work.product / "results.json", json.dumps(results, indent=1))
    write_report(job.work.product, results)
    asked = sum(map(len, held_out.values()))
    counts = {
        "prompts": asked,
        "prompts over the limit": sum(map(len, rows.values())) - asked,
        "answers": sum(len(g.trajectories) for groups in scored.answers.values() for g in groups),
        **counts,
    }
    return {
        "headline": headline(results),
        "counts": counts,
        **{k: v for k, v in results["metrics"].items() if isinstance(v, (int, float))},
        "passed": results["verdict"]["passed"],
    }


Human = Mapping[str, tuple[list[list[float]], list[list[bool]]]]
"""Arm -> log-probs and masks of the human replies; without the arms whose split has none that fits."""


def score(
    job: Job, splits: Mapping[str, str], held_out: Mapping[str, Sequence[Group]], certified: Sequence[str]
) -> tuple[Scored, Human, dict[str, int]]:
    """Scores of every arm, log-probs of the human replies by arm, and numbers of answers without a score.
    One arm's model is loaded at a time, and only if something reads it.
    """
    options, context = job.options, context_of(job, certified=False)
    answers = {arm: read_groups(job.path(f"answers_{arm}") / "groups.parquet") for arm in splits}
    progress.expect("texts", planned_texts(answers, splits, held_out, certified, options))
    gold = GoldMeasure.load(job.path("gold"), job.path("encoder")) if "gold" in job.inputs else None
    encoder = gold.encoder if gold else Encoder(job.path("encoder")) if "encoder" in job.inputs else None
    gold = gold if gold and gold.certificate["passed"] else None  # not shown to beat chance: not used
    engine = SingleModelEngine(scoring_profile(options["profile"]))
    base = SingleModelEngine(scoring_profile(options["profile"]))
    longest = shortest_context(job) if options["perplexity_rows"] else None
    human, numbers, scores = {}, {}, {}
    for arm, groups in answers.items():
        path = job.path(options["arms"][arm]["model"])
        numbers[arm] = describe_answers(groups, encoder)
        replies = held_out[splits[arm]][: options["perplexity_rows"]]
        if any(group.trajectories for group in replies):
            rows = human_logprobs(engine.loaded(path), replies, longest)
            if rows[0]:
                human[arm], numbers[arm]["perplexity"] = rows, perplexity(*rows)
        own = LazyMapping(
            policy=lambda path=path: engine.loaded(path),
            base=lambda: base.loaded(job.path("base")),
        )
        ctx = Context(models=Overlay(context.models, own), seed=options["seed"])
        scores[arm] = scores_of(groups, options["metrics"], ctx, gold)
    engine.release()
    for split in held_out:
        members = {arm: groups for arm, groups in answers.items() if splits[arm] == split}
        for arm, more in rewards_of(members, context, certified).items():
            scores[arm] |= more
    full, unscored = settled(scores)
    own = {
        "base": lambda: base.loaded(job.path("base")),
        **({"encoder": lambda: encoder} if encoder else {}),
    }
    contexts = {
        arm: Context(
            models=Overlay(context.models, LazyMapping(**own, policy=functools.partial(engine.loaded, path))),
            seed=options["seed"],
        )
        for arm in answers
        for path in [job.path(options["arms"][arm]["model"])]
    }
    if options["measures"]:
        progress.expect("texts read by measures")  # each says itself how often it reads a text
    measured = measures_of(answers, full, options["measures"], contexts)
    engine.release()
    scored = Scored(splits, answers, numbers, full, measured, own=options["named"])
    scored.add_means()
    return scored, human, unscored


def compare(
    job: Job, results: dict[str, Any], scored: Scored, human: Human, certified: Sequence[str]
) -> None:
    """Add to the results how the arms differ."""
    options, metrics = job.options, results["metrics"]
    for arm, others in scored.contrasts.items():
        for other in others:
            contrast(results, scored, arm, other, certified)
    final = scored.final
    comparable = "initial" in scored.contrasts[final] and same_tokens(job, final, "initial")
    if comparable and has_logprobs(scored.answers[final]):
        engine = SingleModelEngine(scoring_profile(options["profile"]))
        reference = engine.loaded(job.path(options["arms"]["initial"]["model"]))
        metrics["kl_to_sft"] = kl_to(reference, scored.answers[final])
    summarise(results, scored)
    if comparable and final in human:
        logprobs, masks = human[final]
        ratio = perplexity_ratio(logprobs, human["initial"][0], masks)
        metrics |= {f"perplexity_ratio.{end}": v for end, v in ratio.items()}
    describe_quality(results, scored, options["by"], certified)
    results["reports"], results["undefined"] = reports_of(scored, options["reports"])
    metrics |= flattened(results["reports"])
    if scored.own:
        results["contrasts"] = [
            {"arm": title_of(arm), "against": title_of(other), "key": key_of(other)}
            for arm, others in scored.contrasts.items()
            for other in others
        ]


def scoring_profile(profile: Mapping[str, Any]) -> dict[str, Any]:
    """The profile with the engine that scores: nothing is sampled here."""
    return {**profile, "engine": "torch"}


def same_tokens(job: Job, arm: str, other: str) -> bool:
    """Whether the models of two arms share vocabulary and chat template, so that one scores the other's
    tokens.
    """
    one, two = (job.inputs[f"answers_{name}"].meta.get("contract") or {} for name in (arm, other))
    return all(one.get(key) == two.get(key) for key in ("vocabulary", "template"))


def shortest_context(job: Job) -> int | None:
    """Number of tokens that every arm's model reads, so that all have the log-probs of the same replies."""
    models = [job.path(arm["model"]) for arm in job.options["arms"].values()]
    return min(filter(None, map(context_length, models)), default=None)


def planned_texts(
    answers: Mapping[str, Sequence[Group]],
    splits: Mapping[str, str],
    held_out: Mapping[str, Sequence[Group]],
    reward_models: Sequence[str],
    options: Mapping[str, Any],
) -> int:
    """Number of texts to score, for progress: answers of each arm per reward model and metric, human replies,
    and the KL's answers.
    """
    reads = len(reward_models) + texts_read(options["metrics"])
    found = 0
    for arm, groups in answers.items():
        replies = held_out[splits[arm]][: options["perplexity_rows"]]
        found += reads * sum(len(g.trajectories) for g in groups) + sum(len(g.trajectories) for g in replies)
    return found + (len(answers["initial"]) if "initial" in answers else 0)


def curves(job: Job) -> dict[str, list[list[float]]]:
    """Training losses of the policy and the reward models."""
    found: dict[str, list[list[float]]] = {}
    reward_models = [name for name in job.options["reward_models"] if name in job.inputs]
    titles = {
        name: name.replace("_", " ") if len(reward_models) > 1 else "reward model" for name in reward_models
    }
    names = {"initial": "SFT", **titles, **{f"round_{i}": f"round {i}" for i in job.rounds("round_")}}
    for name, title in names.items():
        if name not in job.inputs or not (file := job.path(name) / "metrics.jsonl").exists():
            continue
        lines = [json.loads(text) for text in file.read_text().splitlines()]
        losses = [
            [line["step"], v]
            for line in lines
            for k, v in line["metrics"].items()
            if k.count("/") == 1 and k.endswith("/loss")
        ]
        if losses:
            found[title] = losses
    return found
