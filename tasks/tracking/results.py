"""What an evaluation found, and the paired comparison of two of them.

An evaluation is a plain mapping: `metrics` (flat numbers), `verdict`, `policy` (the key of what was examined),
`per_prompt` (score -> one number a held-out prompt, in the split's order), and what these numbers stand on: `prompts`
(digest of the held-out split), `answers` (how it was decoded) and `scorers` (score -> digest of who gave it).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ratchet.components.storage.store import content, digest, read_manifest

FINAL = "final."


def evaluation(run: Path) -> dict[str, Any]:
    """The evaluation of a run's directory; empty when it has none. An input that is gone leaves its digest out."""
    folder = run / "stages" / "evaluate"
    manifest = read_manifest(folder)
    if manifest is None or not (folder / "results.json").exists():
        return {}
    found = json.loads((folder / "results.json").read_text())
    made_with = manifest.get("made_with", {})
    options, keys = made_with.get("options", {}), dict(zip(made_with.get("inputs", {}), manifest["parents"], strict=False))
    inputs = {role: _manifest_of(folder.resolve().parent, key) for role, key in keys.items()}
    contents = {role: content(m["files"]) for role, m in inputs.items() if m}
    held_out = (inputs.get("data") or {"files": {}})["files"].get(f"{options.get('data')}.parquet", {})
    scores = {name.removeprefix(FINAL): values for name, values in found.get("per_prompt", {}).items() if name.startswith(FINAL)}
    lengths, each = found.get("lengths", {}).get("final", []), options.get("responses_per_prompt", 1)
    scores["length"] = [sum(lengths[i:i + each]) / each for i in range(0, len(lengths), each)]
    return {
        "policy": keys.get("policy", ""), "metrics": found.get("metrics", {}), "verdict": found.get("verdict", {}),
        "per_prompt": {name: values for name, values in scores.items() if values},
        "prompts": held_out.get("sha256", ""), "answers": {k: options.get(k) for k in ("data", "max_tokens", "temperature")},
        "scorers": {name: _scorer(name, contents, options) for name in scores},
    }


def _manifest_of(store: Path, key: str) -> dict[str, Any] | None:
    return next((m for p in store.glob(f"*-{key[:16]}") if (m := read_manifest(p))), None)


def _scorer(score: str, contents: Mapping[str, str], options: Mapping[str, Any]) -> str:
    """Digest of who gave a score: the gold judge with its encoder, a reward model, or the recipe's own metrics."""
    role = score.removeprefix("reward.")
    if score == "gold":
        return digest([contents["gold"], contents["encoder"]]) if {"gold", "encoder"} <= set(contents) else ""
    return contents.get(role, "") if role in options.get("judges", ()) else digest([score, options.get("metrics", [])])


def figures(results: Mapping[str, Any]) -> dict[str, float]:
    """The dozen numbers of an evaluation that people compare, to four digits: the final policy's rate by the run's measure, its gains (or
    win rates) with their intervals, and what describes its answers. All of them stand in results.json and in MLflow."""
    metrics, measure = results.get("metrics", {}), results.get("measure")
    compared = [name.removesuffix(".mean") for name in metrics if name.endswith(".mean") and "_vs_" in name and "_lc_" not in name]
    gains = [f"{measure}_gain_vs_base", f"{measure}_gain_vs_sft", "win_rate_vs_sft", "win_rate_vs_base", *compared]
    shown = [name for name in dict.fromkeys(gains) if f"{name}.mean" in metrics][:2]
    rewards = [name for name in metrics if name.startswith("final.reward.")]
    names = [f"final.{measure}" if measure else next(iter(rewards), ""), *(f"{name}.{end}" for name in shown for end in ("mean", "low", "high")),
             *(f"final.{name}" for name in ("length", "ended", "repetitive", "distinct_2", "perplexity"))]
    return {name: float(f"{metrics[name]:.4g}") for name in names if isinstance(metrics.get(name), int | float)}


def numbers(lineage: Mapping[str, Any]) -> dict[str, float]:
    """The evaluation's numbers in a lineage."""
    return {k: v for k, v in lineage.get("results", {}).get("metrics", {}).items() if isinstance(v, (int, float))}


def comparable(mine: Mapping[str, Any], theirs: Mapping[str, Any], score: str) -> str:
    """Empty when both have `score` by the same judge on the same prompts, answered under the same limits; else why not."""
    for one, whose in ((mine, "the first"), (theirs, "the other")):
        if not one.get("per_prompt", {}).get(score):
            return f"{whose} has no {score} for each held-out prompt"
        if not one["prompts"] or not one["scorers"].get(score):
            return f"{whose} was evaluated with inputs that are no longer known"
    if mine["prompts"] != theirs["prompts"]:
        return "their held-out prompts are not the same"
    if mine["answers"] != theirs["answers"]:
        return f"they answered under different limits ({mine['answers']} and {theirs['answers']})"
    return "" if mine["scorers"][score] == theirs["scorers"][score] else f"their {score} comes from different judges"


def paired(mine: Mapping[str, Any], theirs: Mapping[str, Any], score: str, *, level: float = 0.95,
           resamples: int = 10_000) -> dict[str, Any]:
    """Interval of mine − theirs over the prompts both answered; see `comparable` first."""
    from ratchet.components.evaluation.bootstrap import difference

    a, b = mine["per_prompt"][score], theirs["per_prompt"][score]
    shared = min(len(a), len(b))
    return dict(difference(a[:shared], b[:shared], level=level, resamples=resamples))


def shared_scores(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> Sequence[str]:
    """Scores that can be compared, the gold judge first and length last."""
    both = set(mine.get("per_prompt", {})) & set(theirs.get("per_prompt", {}))
    return sorted((s for s in both if not comparable(mine, theirs, s)), key=lambda s: (s != "gold", s == "length", s))
