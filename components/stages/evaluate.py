"""Held-out evaluation: base, initial and final policy answer the same prompts; judges, people's replies and gates decide."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from components.data.groups import read_groups, write_groups
from components.engines.torch import TorchEngine
from components.evaluation.bootstrap import mean_interval
from components.evaluation.diversity import distinct_n, embedding_spread, self_bleu
from components.evaluation.fluency import perplexity
from components.evaluation.gates import judge_gates
from components.evaluation.gold import GoldJudge
from components.evaluation.kl import sequence_kl
from components.evaluation.report import write_report
from components.evaluation.win_rate import compare
from components.loop import annotate_groups
from components.piece import build
from components.run import Job
from components.stages.experience import context_of
from components.stages.improve import Overlay
from components.store import write_atomic
from components.types import Context, Group

ARMS = ("base", "initial", "policy")
TITLES = {"base": "base", "initial": "SFT", "policy": "final"}


def evaluate(job: Job) -> dict[str, Any]:
    """Write results.json, the answers, the plots and report.html; return the numbers people look for first."""
    options = job.options
    held_out = read_groups(job.path("data") / f"{options['data']}.parquet")[: options["prompts"]]
    arms = [a for i, a in enumerate(ARMS) if job.inputs[a].digest not in [job.inputs[b].digest for b in ARMS[:i]]]
    if "policy" not in arms:  # nothing was trained after the initial policy: it is the final one
        arms = [a for a in arms if a != "initial"] + ["policy"]
    judge = GoldJudge.load(job.path("gold"), job.path("encoder")) if "gold" in job.inputs else None
    context = context_of(job)
    answers: dict[str, list[Group]] = {}
    numbers: dict[str, dict[str, float]] = {}
    per_prompt: dict[str, dict[str, list[float]]] = {}
    for arm in arms:
        engine = TorchEngine(job.path(arm), rows=options["profile"]["sampler_rows"], threads=options["profile"]["threads"])
        answers[arm] = sample(engine, held_out, options)
        write_groups(job.work.product / f"answers_{arm}.parquet", answers[arm])
        numbers[arm] = describe_answers(answers[arm], job)
        if options["perplexity_rows"]:
            numbers[arm]["perplexity"] = perplexity_of(engine, held_out[: options["perplexity_rows"]])
        per_prompt[arm] = scores_of(arm, answers[arm], options, context, judge, engine)
        numbers[arm] |= {name: sum(v) / len(v) for name, v in per_prompt[arm].items()}
    results = {
        "recipe": options["recipe"], "about": options["about"], "arms": {TITLES[a]: numbers[a] for a in arms},
        "rounds": [{"round": i, **job.inputs[f"scored_{i}"].meta["panel"]} for i in range(1, 100) if f"scored_{i}" in job.inputs],
        "per_prompt": {}, "metrics": {},
    }
    opponents = [a for a in arms if a != "policy"]
    for against in opponents:
        contrast(results, answers, per_prompt, against)
    if "initial" in opponents and context.models.get("initial") is not None:
        results["metrics"]["kl_to_sft"] = kl_to(context.models["initial"], answers["policy"])
    summarise(results, numbers, opponents)
    results["verdict"] = judge_gates(results["metrics"], options["gates"])
    certificate = job.inputs["reward_model"].meta.get("certificate") if "reward_model" in job.inputs else None
    results["certificate"] = certificate
    results["transcripts"] = transcripts(answers, per_prompt, arms, options["transcripts"])
    write_atomic(job.work.product / "results.json", json.dumps(results, indent=1))
    write_report(job.work.product, results)
    return {"headline": headline(results), **{k: v for k, v in results["metrics"].items() if isinstance(v, (int, float))},
            "passed": results["verdict"]["passed"]}


def sample(engine: TorchEngine, held_out: Sequence[Group], options: Mapping[str, Any]) -> list[Group]:
    """Answers to the held-out prompts; the same seed a prompt for every arm."""
    spec = {"name": "sample", "responses_per_prompt": options["responses_per_prompt"], "max_tokens": options["max_tokens"],
            "temperature": options["temperature"]}
    ctx = Context(models={"policy": engine}, seed=options["seed"], round=0)
    return build("rollout", spec)([g.prompt for g in held_out], ctx)


def describe_answers(groups: Sequence[Group], job: Job) -> dict[str, float]:
    """Length, truncation, empties and diversity of an arm's answers."""
    rows = [t for g in groups for t in g.trajectories]
    texts = [t.text for t in rows]
    found = {
        "length": sum(sum(t.mask) for t in rows) / len(rows),
        "truncated": sum(t.stop == "length" for t in rows) / len(rows),
        "empty": sum(not t.text.strip() for t in rows) / len(rows),
        "distinct_1": distinct_n(texts, 1), "distinct_2": distinct_n(texts, 2), "self_bleu": self_bleu(texts),
    }
    if "encoder" in job.inputs:
        found["embedding_spread"] = embedding_spread(texts, job.path("encoder"))
    return found


def perplexity_of(engine: TorchEngine, held_out: Sequence[Group]) -> float:
    """Perplexity on people's replies to the held-out prompts: the alignment tax is its growth."""
    encoded = [engine.encode(g) for g in held_out if g.trajectories]
    rows = engine.score(encoded, frozenset({"logprobs"}))
    return perplexity([p for row in rows for p in row["logprobs"]], [t.mask for g in encoded for t in g.trajectories])


def scores_of(arm: str, groups: Sequence[Group], options: Mapping[str, Any], context: Context, judge: GoldJudge | None,
              engine: TorchEngine) -> dict[str, list[float]]:
    """Per prompt, the mean over its responses of every score: gold judge, reward models, the recipe's own metrics."""
    found: dict[str, list[float]] = {}
    if judge is not None:
        flat = judge.score([[*g.prompt.messages, *t.messages] for g in groups for t in g.trajectories])
        found["gold"] = _by_prompt(list(flat), groups)
    specs = [{"name": "rewards.reward_model", "model": name} for name in context.models if name.startswith("judge")]
    ctx = Context(models=Overlay(context.models, {"policy": engine}), seed=options["seed"])
    for spec in [*specs, *options["metrics"]]:
        columns = build("annotate", spec)(groups, ctx)
        for name, values in columns.items():
            if name.startswith("reward.") and not name.endswith(".status"):
                found[name] = [_mean([v for v in row if v is not None]) for row in values]
    return found


def contrast(results: dict[str, Any], answers: Mapping[str, list[Group]], per_prompt: Mapping[str, dict[str, list[float]]],
             against: str) -> None:
    """Final against one other arm: win rates with paired intervals, raw and length-controlled, by every score."""
    key = "base" if against == "base" else "sft"
    lengths = {arm: [_mean([float(sum(t.mask)) for t in g.trajectories]) for g in answers[arm]] for arm in ("policy", against)}
    for score, values in per_prompt["policy"].items():
        other = per_prompt[against][score]
        name = "win_rate" if score == "gold" else f"win_rate_{score.removeprefix('reward.')}"
        found = compare(values, other, lengths["policy"], lengths[against])
        results["per_prompt"][name if key == "sft" else f"{name}_{key}"] = found["wins"]
        results["per_prompt"][f"{score}_gain" if key == "sft" else f"{score}_gain_{key}"] = [
            a - b for a, b in zip(values, other, strict=True)]
        for kind in ("raw", "length_controlled"):
            label = name if kind == "raw" else f"{name}_lc"
            for end, number in found[kind].items():
                results["metrics"][f"{label}_vs_{key}.{end}"] = number
        gain = mean_interval([a - b for a, b in zip(values, other, strict=True)])
        for end, number in gain.items():
            results["metrics"][f"{score}_gain_vs_{key}.{end}"] = number


def kl_to(reference: Any, groups: Sequence[Group]) -> float:
    """Monte Carlo KL(final | SFT) a sequence, in nats, on the first answer to each prompt."""
    firsts = [g.take([0]) for g in groups]
    rows = reference.score(firsts, frozenset({"logprobs"}))
    return sequence_kl([g.trajectories[0].logprobs for g in firsts], [row["logprobs"][0] for row in rows],
                       [g.trajectories[0].mask for g in firsts])


def summarise(results: dict[str, Any], numbers: Mapping[str, dict[str, float]], opponents: Sequence[str]) -> None:
    """Ratios to the initial policy, which the gates read: tax, diversity, length."""
    metrics = results["metrics"]
    for name, value in numbers["policy"].items():
        metrics[f"final.{name}"] = value
    if "initial" in opponents:
        for name in ("perplexity", "distinct_2", "length", "embedding_spread"):
            if name in numbers["initial"] and numbers["initial"][name]:
                metrics[f"{name}_ratio"] = numbers["policy"][name] / numbers["initial"][name]


def transcripts(answers: Mapping[str, list[Group]], per_prompt: Mapping[str, dict[str, list[float]]], arms: Sequence[str],
                count: int) -> list[dict[str, Any]]:
    """The first prompts with every arm's first answer side by side."""
    shown = []
    for i, group in enumerate(answers["policy"][:count]):
        shown.append({"prompt": [dict(m) for m in group.prompt.messages], "human": group.prompt.answer,
                      "answers": {TITLES[a]: answers[a][i].trajectories[0].text for a in arms},
                      "gold": {TITLES[a]: per_prompt[a]["gold"][i] for a in arms if "gold" in per_prompt[a]}})
    return shown


def headline(results: Mapping[str, Any]) -> str:
    metrics = results["metrics"]
    if "win_rate_vs_sft.mean" in metrics:
        return (f"wins {metrics['win_rate_vs_sft.mean']:.1%} against SFT by the gold judge "
                f"[{metrics['win_rate_vs_sft.low']:.1%}, {metrics['win_rate_vs_sft.high']:.1%}]")
    first = next((k for k in metrics if k.startswith("final.reward.")), None)
    return f"{first.removeprefix('final.')} {metrics[first]:.3f}" if first else f"length {metrics['final.length']:.1f}"


def _by_prompt(flat: Sequence[float], groups: Sequence[Group]) -> list[float]:
    found, at = [], 0
    for group in groups:
        count = len(group.trajectories)
        found.append(_mean([float(v) for v in flat[at : at + count]]))
        at += count
    return found


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
