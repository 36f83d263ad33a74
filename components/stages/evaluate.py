"""Stage `evaluate`: base, initial and final policy answer the same held-out prompts; metrics, win rates,
gates, report.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ratchet.components.data.groups import read_groups, write_groups
from ratchet.components.evaluation.answers import answer_rates
from ratchet.components.evaluation.certificate import require
from ratchet.components.evaluation.diversity import cosine_spread, distinct_n, self_bleu
from ratchet.components.evaluation.fluency import perplexity, perplexity_ratio
from ratchet.components.evaluation.gates import check_gates
from ratchet.components.evaluation.gold import Encoder, GoldMeasure
from ratchet.components.evaluation.report import write_report
from ratchet.components.evaluation.results import (
    TITLES,
    Ragged,
    average,
    contrast,
    describe_quality,
    headline,
    kl_to,
    summarise,
    transcripts,
)
from ratchet.components.inference.choose import engine_of
from ratchet.components.piece import build
from ratchet.components.protocols import Engine
from ratchet.components.recipes.reward_models import reward_models
from ratchet.components.stages import progress
from ratchet.components.stages.experience import certificate_of, context_of
from ratchet.components.stages.improve import Overlay
from ratchet.components.stages.job import Job
from ratchet.components.storage.store import write_atomic
from ratchet.components.training.loop import reward_columns, texts_read
from ratchet.components.types import Columns, Context, Group

ARMS = ("base", "initial", "policy")


def evaluate(job: Job) -> dict[str, Any]:
    """Write results.json, answers, plots and report.html; return the headline metrics."""
    options = job.options
    records = read_groups(job.path("data") / f"{options['data']}.parquet")
    held_out = records[: options["prompts"]]
    arms = [
        a for i, a in enumerate(ARMS) if job.inputs[a].digest not in [job.inputs[b].digest for b in ARMS[:i]]
    ]
    if "policy" not in arms and options["best_of"]:  # same weights, but best-of-n sampling
        arms.append("policy")
    elif "policy" not in arms:  # no training after the initial policy: it is the final one
        arms = [a for a in arms if a != "initial"] + ["policy"]
    gold = GoldMeasure.load(job.path("gold"), job.path("encoder")) if "gold" in job.inputs else None
    encoder = gold.encoder if gold else Encoder(job.path("encoder")) if "encoder" in job.inputs else None
    gold = gold if gold and gold.certificate["passed"] else None  # not shown to beat chance: not used
    context = context_of(job, certified=False)
    certificates = {name: found for name in options["reward_models"] if (found := certificate_of(job, name))}
    certified = [name for name, found in certificates.items() if found["passed"]]
    progress.expect("texts", planned_texts(held_out, arms, certified, options))
    answers: dict[str, list[Group]] = {}
    numbers: dict[str, dict[str, float]] = {}
    scores: dict[str, dict[str, Ragged]] = {}
    human: dict[str, Ragged] = {}
    masks: list[list[bool]] = []
    engine: Any = None
    for arm in arms:
        if engine is None:
            engine = engine_of(options["profile"], job.path(arm))
        else:
            engine.load(job.path(arm))
        best_of = options["best_of"] if arm == "policy" else None
        for model in sorted(reward_models(best_of["annotate"])) if best_of else ():
            if model in options["reward_models"]:
                require(certificates.get(model), f"the reward model {model!r}")
        answers[arm] = (
            best(sample(engine, held_out, options, best_of["n"]), best_of, context)
            if best_of
            else sample(engine, held_out, options)
        )
        write_groups(job.work.product / f"answers_{arm}.parquet", answers[arm])
        numbers[arm] = describe_answers(answers[arm], encoder)
        if options["perplexity_rows"]:
            human[arm], masks = human_logprobs(engine, held_out[: options["perplexity_rows"]])
            numbers[arm]["perplexity"] = perplexity(human[arm], masks)
        scores[arm] = scores_of(answers[arm], options, context, gold, engine)
    for arm, more in rewards_of(answers, context, certified).items():
        scores[arm] |= more
    scores, unscored = settled(scores)
    measured = measures_of(
        answers,
        options,
        Context(
            models=Overlay(
                context.models,
                {
                    "base": engine_of(options["profile"], job.path("base")),
                    **({"encoder": encoder} if encoder else {}),
                },
            )
        ),
    )
    for arm in arms:
        numbers[arm] |= {
            name: average([average(row) for row in rows])
            for name, rows in {**scores[arm], **measured[arm]}.items()
        }
    results = {
        "recipe": options["recipe"],
        "about": options["about"],
        "arms": {TITLES[a]: numbers[a] for a in arms},
        "rounds": [
            {"round": i, **job.inputs[f"scored_{i}"].meta["round_metrics"]} for i in job.rounds("scored_")
        ],
        "per_prompt": {},
        "metrics": {},
    }
    results["per_prompt"] |= {
        f"final.{name}": [average(row) for row in rows]
        for name, rows in {**scores["policy"], **measured["policy"]}.items()
    }
    opponents = [a for a in arms if a != "policy"]
    for against in opponents:
        contrast(results, answers, scores, against, certified)
    if "initial" in opponents and context.models.get("initial") is not None:
        results["metrics"]["kl_to_sft"] = kl_to(context.models["initial"], answers["policy"])
    summarise(results, answers, numbers, opponents)
    if "initial" in opponents and human:
        results["metrics"] |= {
            f"perplexity_ratio.{end}": v
            for end, v in perplexity_ratio(human["policy"], human["initial"], masks).items()
        }
    describe_quality(results, answers, scores, measured, opponents, options["by"], certified)
    results["verdict"] = check_gates(results["metrics"], options["gates"])
    results["certificates"] = certificates
    results["pairs_from"] = "verifier" if options["resolved"].get("demonstrate") else "people"
    results["gold"] = job.inputs["gold"].meta["certificate"] if "gold" in job.inputs else None
    results["lengths"] = {TITLES[a]: [sum(t.mask) for g in answers[a] for t in g.trajectories] for a in arms}
    results["curves"] = curves(job)
    results["lineage"] = [
        {"name": name, "kind": a.kind, "digest": a.digest[:16]} for name, a in job.inputs.items()
    ]
    summary = job.path("data") / "summary.json"
    results["sources"] = (json.loads(summary.read_text()) if summary.exists() else {}).get("sources")
    results["configuration"] = options["resolved"]
    results["transcripts"] = transcripts(
        answers, scores, arms, options["transcripts"], options["by"], results["measure"]
    )
    write_atomic(job.work.product / "results.json", json.dumps(results, indent=1))
    write_report(job.work.product, results)
    counts = {
        "prompts": len(held_out),
        "prompts over the limit": len(records) - len(held_out),
        "answers": sum(len(g.trajectories) for groups in answers.values() for g in groups),
        **unscored,
    }
    return {
        "headline": headline(results),
        "counts": counts,
        **{k: v for k, v in results["metrics"].items() if isinstance(v, (int, float))},
        "passed": results["verdict"]["passed"],
    }


def planned_texts(
    held_out: Sequence[Group], arms: Sequence[str], reward_models: Sequence[str], options: Mapping[str, Any]
) -> int:
    """Number of texts to sample or score, for progress: answers of each arm, again per reward model and
    metric, human replies, and the KL's answers.
    """
    answers = len(held_out) * options["responses_per_prompt"]
    human = sum(len(g.trajectories) for g in held_out[: options["perplexity_rows"]])
    reads = 1 + len(reward_models) + texts_read(options["metrics"])
    return len(arms) * (answers * reads + human) + (len(held_out) if "initial" in arms else 0)


def sample(
    engine: Engine, held_out: Sequence[Group], options: Mapping[str, Any], times: int = 1
) -> list[Group]:
    """Answers to the held-out prompts, `times` as many as the recipe requests. Seeds per prompt are the same
    for all arms.
    """
    spec = {
        "name": "sample",
        "responses_per_prompt": options["responses_per_prompt"] * times,
        "max_tokens": options["max_tokens"],
        "temperature": options["temperature"],
    }
    ctx = Context(models={"policy": engine}, seed=options["seed"], round=0)
    return build("rollout", spec)([g.prompt for g in held_out], ctx)


def best(groups: Sequence[Group], best_of: Mapping[str, Any], context: Context) -> list[Group]:
    """Best-of-n: from each `n` consecutive answers the one with the highest reward (the last reward written);
    the first among ties.
    """
    scored = list(groups)
    for spec in best_of["annotate"]:
        columns = build("annotate", spec)(scored, context)
        scored = [g.extended({name: rows[i] for name, rows in columns.items()}) for i, g in enumerate(scored)]
    name, n = reward_columns(best_of["annotate"])[-1], best_of["n"]
    chosen = []
    for group, marked in zip(groups, scored, strict=True):
        values = [-math.inf if v is None else v for v in marked.columns[name]]
        chosen.append(
            group.take([max(range(i, i + n), key=values.__getitem__) for i in range(0, len(values), n)])
        )
    return chosen


def measures_of(
    answers: Mapping[str, list[Group]], options: Mapping[str, Any], ctx: Context
) -> dict[str, dict[str, Ragged]]:
    """Arm -> measure -> one number per answer."""
    found: dict[str, dict[str, Ragged]] = {arm: {} for arm in answers}
    for spec in options["measures"]:
        for (
            arm,
            groups,
        ) in answers.items():  # apart, for a measure may describe the set of answers to a prompt
            found[arm][spec["name"]] = build("measure", spec)(groups, ctx)
    return found


def together(answers: Mapping[str, Sequence[Group]]) -> list[Group]:
    """The answers of all arms to a prompt as one group, so that a scoring model processes each prompt
    once.
    """
    return [
        Group(groups[0].prompt, tuple(t for g in groups for t in g.trajectories))
        for groups in zip(*answers.values(), strict=True)
    ]


def apart(
    rows: Sequence[Sequence[Any]], answers: Mapping[str, Sequence[Group]]
) -> dict[str, list[list[Any]]]:
    """Split values of `together` (one per answer) by arm."""
    found: dict[str, list[list[Any]]] = {arm: [] for arm in answers}
    for row, groups in zip(rows, zip(*answers.values(), strict=True), strict=True):
        rest = iter(row)
        for arm, group in zip(answers, groups, strict=True):
            found[arm].append([next(rest) for _ in group.trajectories])
    return found


def describe_answers(groups: Sequence[Group], encoder: Encoder | None) -> dict[str, float]:
    """Length, stop reasons, refusal rate and diversity of an arm."""
    rows = [t for g in groups for t in g.trajectories]
    texts = [t.text for t in rows]
    found = {
        "length": sum(sum(t.mask) for t in rows) / len(rows),
        **answer_rates(texts, [t.stop for t in rows]),
        "distinct_1": distinct_n(texts, 1),
        "distinct_2": distinct_n(texts, 2),
        "self_bleu": self_bleu(texts),
    }
    if encoder:
        found["embedding_spread"] = cosine_spread(encoder(texts))
    return found


def human_logprobs(engine: Engine, held_out: Sequence[Group]) -> tuple[Ragged, list[list[bool]]]:
    """Log-probs and loss masks of human replies to the held-out prompts, for the perplexity (alignment
    tax).
    """
    encoded = [engine.encode(g) for g in held_out if g.trajectories]
    rows = engine.score(encoded, frozenset({"logprobs"}))
    return [p for row in rows for p in row["logprobs"]], [
        list(t.mask) for g in encoded for t in g.trajectories
    ]


def scores_of(
    groups: Sequence[Group],
    options: Mapping[str, Any],
    context: Context,
    gold: GoldMeasure | None,
    engine: Engine,
) -> dict[str, Ragged]:
    """Scores of an arm, per prompt and answer: gold measure and the recipe's metrics, which may use the arm's
    `engine`.
    """
    found: dict[str, Ragged] = {}
    if gold is not None:
        flat = iter(
            gold.score_replies([[*g.prompt.messages, *t.messages] for g in groups for t in g.trajectories])
        )
        found["gold"] = [[next(flat) for _ in g.trajectories] for g in groups]
    ctx = Context(models=Overlay(context.models, {"policy": engine}), seed=options["seed"])
    scored = list(groups)
    for spec in options["metrics"]:
        columns = build("annotate", spec)(scored, ctx)
        scored = [g.extended({name: rows[i] for name, rows in columns.items()}) for i, g in enumerate(scored)]
        found |= _rewards(columns)
    return found


def rewards_of(
    answers: Mapping[str, Sequence[Group]], context: Context, models: Sequence[str]
) -> dict[str, dict[str, Ragged]]:
    """Scores of every arm by reward models."""
    found: dict[str, dict[str, Ragged]] = {arm: {} for arm in answers}
    for model in models:
        columns = _rewards(
            build("annotate", {"name": "rewards.reward_model", "model": model})(together(answers), context)
        )
        for name, values in columns.items():
            for arm, rows in apart(values, answers).items():
                found[arm][name] = rows
    return found


def _rewards(columns: Columns) -> dict[str, Any]:
    """The reward columns."""
    return {
        name: values
        for name, values in columns.items()
        if name.startswith("reward.") and not name.endswith(".status")
    }


def settled(scores: Mapping[str, Mapping[str, Any]]) -> tuple[dict[str, dict[str, Ragged]], dict[str, int]]:
    """Scores of every arm, where an answer without a valid score (e.g. an empty one) gets the lowest score of
    all arms, never 0; and the number of such answers by score. A score without any valid value is left out.
    """
    full: dict[str, dict[str, Ragged]] = {arm: {} for arm in scores}
    counts: dict[str, int] = {}
    for name in next(iter(scores.values())):
        every = [value for columns in scores.values() for row in columns[name] for value in row]
        known = [value for value in every if value is not None and math.isfinite(value)]
        if len(known) < len(every):
            counts[f"answers without {name}"] = len(every) - len(known)
        for arm, columns in scores.items() if known else ():
            full[arm][name] = [
                [min(known) if value is None or not math.isfinite(value) else value for value in row]
                for row in columns[name]
            ]
    return full, counts


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
