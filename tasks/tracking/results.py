"""Evaluation results of runs, and their paired comparison.

An evaluation is a mapping: `metrics` (flat numbers), `verdict`, `policy` (key of the evaluated model),
`per_prompt` (score -> one number per held-out prompt, in order) of the final arm, `answered_by` (key of that
arm's model, mostly the policy), and the conditions: `prompts` (digest of the held-out split), `answers`
(sampling settings), `scorers` (score -> digest of the scorer).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ratchet.components.errors import RecipeError
from ratchet.components.piece import describe
from ratchet.components.recipes.arms import final_arm, label_of, title_of
from ratchet.components.recipes.sections import Spec
from ratchet.components.storage.store import content, digest, read_manifest

FINAL = "final."
CONDITIONS = ("data", "max_tokens", "temperature", "decoding")
"""Sampling settings that answers must share to be compared."""


def read_evaluation(run: Path) -> dict[str, Any]:
    """The evaluation in a run's directory; empty if there is none. Digests of removed inputs are omitted."""
    folder = run / "stages" / "evaluate"
    manifest = read_manifest(folder)
    if manifest is None or not (folder / "results.json").exists():
        return {}
    found = json.loads((folder / "results.json").read_text())
    made_with = manifest.get("made_with", {})
    options = made_with.get("options", {})
    keys = dict(zip(made_with.get("inputs", {}), manifest["parents"], strict=False))
    inputs = {role: _manifest_of(folder.resolve().parent, key) for role, key in keys.items()}
    contents = {role: content(m["files"]) for role, m in inputs.items() if m}
    answered = _answered(options)
    held_out = (inputs.get("data") or {"files": {}})["files"].get(f"{answered.get('data')}.parquet", {})
    scores = {
        name.removeprefix(FINAL): values
        for name, values in found.get("per_prompt", {}).items()
        if name.startswith(FINAL)
    }
    arms, each = options.get("arms"), answered.get("responses_per_prompt", 1)
    lengths = found.get("lengths", {}).get(title_of(final_arm(arms)) if arms else "final", [])
    scores["length"] = [sum(lengths[i : i + each]) / each for i in range(0, len(lengths), each)]
    return {
        "policy": keys.get("policy", ""),
        "answered_by": keys.get(arms[final_arm(arms)]["model"] if arms else "policy", ""),
        "metrics": found.get("metrics", {}),
        "verdict": found.get("verdict", {}),
        "per_prompt": {name: values for name, values in scores.items() if values},
        "prompts": held_out.get("sha256", ""),
        "answers": {name: value for name, value in answered.items() if name in CONDITIONS},
        "scorers": {name: _scorer(name, contents, options) for name in scores},
    }


def _answered(options: Mapping[str, Any]) -> dict[str, Any]:
    """How the final arm answered. `decoding`: the whole rollout but the number of answers, and best-of-n."""
    arms = options.get("arms")
    if not arms:
        names = ("data", "max_tokens", "temperature", "responses_per_prompt")
        return {name: options[name] for name in names if name in options}
    arm = arms[final_arm(arms)]
    rollout = {name: value for name, value in arm["rollout"].items() if name != "responses_per_prompt"}
    return {"data": arm["data"], **arm["rollout"], "decoding": [rollout, arm["best_of"]]}


def _manifest_of(store: Path, key: str) -> dict[str, Any] | None:
    return next((m for p in store.glob(f"*-{key[:16]}") if (m := read_manifest(p))), None)


def _scorer(score: str, contents: Mapping[str, str], options: Mapping[str, Any]) -> str:
    """Digest of a score's source: gold measure with encoder, reward model, or the recipe's metrics and the
    models that the score reads; of a measure also its options and the number of answers. Empty if an input of
    it is no longer there.
    """
    if score == "gold":
        return digest([contents["gold"], contents["encoder"]]) if {"gold", "encoder"} <= set(contents) else ""
    role, own = score.removeprefix("reward."), options.get("reward_models", ())
    if role in own:
        return contents.get(role, "")
    metrics = options.get("metrics", [])
    measures = [spec for spec in options.get("measures", ()) if label_of(spec) == score]
    try:
        models = _models_of(score, metrics, measures, own)
    except RecipeError:  # a piece that there is no more
        return ""
    if not models <= contents.keys():
        return ""
    parts: list[Any] = [{name: contents[name] for name in sorted(models)}] if models else []
    if measures:
        parts += [measures, _answered(options).get("responses_per_prompt", 1)]
    return digest([score, metrics, *parts])


def _models_of(
    score: str, metrics: Sequence[Spec], measures: Sequence[Spec], reward_models: Sequence[str]
) -> set[str]:
    """Models that a score depends on, also through scores that it reads, without those of the run itself."""
    columns, models = {score}, set[str]()
    for slot, spec in [
        *(("measure", one) for one in measures),
        *(("annotate", one) for one in metrics[::-1]),
    ]:
        piece = describe(slot, spec["name"])
        if slot == "measure" or columns & piece.named("writes", spec):
            columns |= piece.named("reads", spec)
            models |= piece.named("models", spec)
    models |= {name for name in reward_models if f"reward.{name}" in columns}
    return models - {"policy", "initial"}


def headline_metrics(results: Mapping[str, Any]) -> dict[str, float]:
    """Headline numbers of an evaluation, to four digits: rate of the headline metric, gains or win rates with
    intervals, and descriptive metrics.
    """
    metrics, measure = results.get("metrics", {}), results.get("measure")
    means = [name.removesuffix(".mean") for name in metrics if name.endswith(".mean")]
    compared = [name for name in means if "_vs_" in name and "_lc_" not in name]
    gains = [f"{measure}_gain_vs_base", f"{measure}_gain_vs_sft", "win_rate_vs_sft", "win_rate_vs_base"]
    shown = [name for name in dict.fromkeys([*gains, *compared]) if name in means][:2]
    rewards = [name for name in metrics if name.startswith("final.reward.")]
    names = [
        f"final.{measure}" if measure else next(iter(rewards), ""),
        *(f"{name}.{end}" for name in shown for end in ("mean", "low", "high")),
        *(f"final.{name}" for name in ("length", "ended", "repetitive", "distinct_2", "perplexity")),
    ]
    numbers = {name: metrics[name] for name in names if isinstance(metrics.get(name), int | float)}
    return {name: float(f"{value:.4g}") for name, value in numbers.items()}


def with_intervals(metrics: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Metric -> its `value`, and `low` and `high` of its interval if it has one, from flat names
    (`gain.mean`, `gain.low`, `gain.high`). Values that are no numbers are left out.
    """
    numbers = {name: value for name, value in metrics.items() if isinstance(value, (int, float))}
    found: dict[str, dict[str, float]] = {}
    for name, value in numbers.items():
        stem, _, end = name.rpartition(".")
        if f"{stem}.mean" not in numbers or end not in ("mean", "low", "high"):
            stem, end = name, "mean"
        found.setdefault(stem, {})["value" if end == "mean" else end] = value
    return found


def as_text(metrics: Mapping[str, Any]) -> dict[str, str]:
    """Metric -> `0.36 [0.304, 0.416]`, or `14` without an interval. Sample sizes (`gain.n`) are left out."""
    return {
        name: f"{one['value']:.4g}" + (f" [{one['low']:.4g}, {one['high']:.4g}]" if "low" in one else "")
        for name, one in with_intervals(metrics).items()
        if not name.endswith(".n")
    }


def why_not_comparable(mine: Mapping[str, Any], theirs: Mapping[str, Any], score: str) -> str:
    """Empty if both have `score` from the same scorer on the same prompts with the same sampling settings;
    else the reason.
    """
    for one, whose in ((mine, "the first"), (theirs, "the other")):
        if not one.get("per_prompt", {}).get(score):
            return f"{whose} has no {score} for each held-out prompt"
        if not one["prompts"] or not one["scorers"].get(score):
            return f"{whose} was evaluated with inputs that are no longer available"
    if mine["prompts"] != theirs["prompts"]:
        return "their held-out prompts differ"
    if mine["answers"] != theirs["answers"]:
        return f"their sampling settings differ ({mine['answers']} and {theirs['answers']})"
    if mine["scorers"][score] != theirs["scorers"][score]:
        return f"their {score} comes from different scorers"
    return ""


def paired_difference(
    mine: Mapping[str, Any], theirs: Mapping[str, Any], score: str, *, level: float = 0.95
) -> dict[str, Any]:
    """Interval of mine − theirs over the shared prompts; check `why_not_comparable` first."""
    from ratchet.components.evaluation.bootstrap import difference

    a, b = mine["per_prompt"][score], theirs["per_prompt"][score]
    shared = min(len(a), len(b))
    return dict(difference(a[:shared], b[:shared], level=level))


def shared_scores(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> Sequence[str]:
    """Comparable scores, of which more is better, gold measure first and length last. Measures such as
    `repetition` are none.
    """
    both = set(mine.get("per_prompt", {})) & set(theirs.get("per_prompt", {}))
    both = {one for one in both if one in ("gold", "length") or one.startswith("reward.")}
    return sorted(
        (s for s in both if not why_not_comparable(mine, theirs, s)),
        key=lambda s: (s != "gold", s == "length", s),
    )
