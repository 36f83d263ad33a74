"""The report: one self-contained HTML page that a manager can read, with every picture inside and no script.

`results` is what the evaluation stage wrote; every part is optional and leaves its section out, never blank:
    recipe, about     the name of the run's recipe and its one sentence
    arms              title (base, SFT, final) → {metric: number}
    metrics           flat numbers, intervals as `<name>.mean`, `.low`, `.high` (`win_rate_vs_sft`, ...)
    verdict           what `gates.judge_gates` returned
    rounds            [{round, reward.<name>, gold, kl, length, ...}]
    certificates      name → certificate of each reward model; `gold` the gold judge's
    lengths           title → tokens of each answer          curves   name → [[step, value], ...]
    transcripts       [{prompt: messages, human, answers: {title: text}, gold: {title: score}}]
    lineage           [{name, digest, ...}]                  configuration   mapping or text
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from components.evaluation import plots

TEMPLATE = Path(__file__).with_name("report.html.j2")
PICTURES = ("win_rates", "rounds", "lengths", "training")
UNITS = {  # metric → how a reader calls it, number of decimals or per cent
    "length": ("length, tokens", ".1f"), "truncated": ("cut by the limit", ".1%"), "ended": ("end by themselves", ".1%"),
    "empty": ("empty", ".1%"), "refusal_like": ("refusal-like", ".1%"), "repetitive": ("repetitive", ".1%"),
    "personal_data": ("with personal data", ".1%"),
    "distinct_1": ("distinct words", ".3f"), "distinct_2": ("distinct word pairs", ".3f"), "self_bleu": ("self-BLEU", ".3f"),
    "embedding_spread": ("spread of meaning", ".3f"), "perplexity": ("perplexity on human replies", ".2f"),
    "gold": ("gold judge score", ".3f"), "kl": ("KL to SFT, nats an answer (drawn answers)", ".2f"), "entropy": ("entropy, nats a token", ".2f"),
    "responses": ("responses", ".0f"), "round": ("round", ".0f"),
}


def write_report(out: Path, results: Mapping[str, Any]) -> Path:
    """Write `out/report.html` and the pictures it holds as `out/plots/*.png`; returns the page.

    Everything a model or a person wrote is escaped. Same results, same bytes.
    """
    from jinja2 import Environment, StrictUndefined

    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    pictures = dict.fromkeys(PICTURES) | {name: _inline(path) for name, path in draw(results, out / "plots").items()}
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"label": label, "number": number, "interval": interval}
    configuration = results.get("configuration")
    page = environment.from_string(TEMPLATE.read_text(encoding="utf-8")).render(
        results=dict.fromkeys(("recipe", "about", "verdict", "certificates", "gold", "transcripts", "lineage"), None) | dict(results),
        headline=headline(results), pictures=pictures, arms=_table(results.get("arms") or {}), rounds=_rounds(results.get("rounds") or []),
        wins=win_rates(results.get("metrics") or {}),
        configuration=configuration if isinstance(configuration, str | None) else json.dumps(configuration, indent=1, default=str),
    )
    target = out / "report.html"
    target.write_text(page, encoding="utf-8")
    return target


def draw(results: Mapping[str, Any], folder: Path) -> dict[str, Path]:
    """Every picture the results have numbers for: name → file."""
    made: dict[str, Path] = {}
    if wins := win_rates(results.get("metrics") or {}):
        made["win_rates"] = plots.win_rates(wins, folder / "win_rates.png")
    if results.get("rounds"):
        made["rounds"] = plots.rounds(results["rounds"], folder / "rounds.png")
    if results.get("lengths"):
        made["lengths"] = plots.lengths(results["lengths"], folder / "lengths.png")
    certificates = results.get("certificates") or {}
    for name, certificate in certificates.items():
        made |= plots.certificate(certificate, folder, suffix=f"_{name}" if len(certificates) > 1 else "")
    if results.get("curves"):
        made["training"] = plots.training(results["curves"], folder / "training.png")
    return made


def headline(results: Mapping[str, Any]) -> str:
    """The one sentence: how often the final policy is preferred, by whom, over how many prompts, and what it cost."""
    metrics = results.get("metrics") or {}
    if "win_rate_vs_sft.mean" not in metrics:
        return "This run has no win rate against the SFT policy; the numbers below describe its answers."
    mean, low, high = (metrics[f"win_rate_vs_sft.{end}"] for end in ("mean", "low", "high"))
    sure = ("better than the model it started from" if low > 0.5 else "worse than the model it started from" if high < 0.5
            else "not distinguishable from the model it started from")
    over = f", {metrics['win_rate_vs_sft.n']} prompts" if "win_rate_vs_sft.n" in metrics else ""
    text = (f"The final policy is {sure}: the gold judge prefers its answer to the SFT policy's in {mean:.1%} of cases "
            f"(95% interval {low:.1%} to {high:.1%}{over})")
    if "win_rate_lc_vs_sft.mean" in metrics:
        lc = [metrics[f"win_rate_lc_vs_sft.{end}"] for end in ("mean", "low", "high")]
        text += f"; with length held equal, {lc[0]:.1%} ({lc[1]:.1%} to {lc[2]:.1%})"
    if "perplexity_ratio.mean" in metrics:
        mean, low, high = (metrics[f"perplexity_ratio.{end}"] - 1 for end in ("mean", "low", "high"))
        text += f". Perplexity on human replies {'rose' if mean > 0 else 'fell'} by {abs(mean):.1%} ({low:+.1%} to {high:+.1%})"
    if "proxy_over_gold.mean" in metrics:
        mean, low, high = (100 * metrics[f"proxy_over_gold.{end}"] for end in ("mean", "low", "high"))
        text += (f". The reward model it was trained on prefers it {abs(mean):.1f} points {'more' if mean > 0 else 'less'} often than the gold judge "
                 f"({low:+.1f} to {high:+.1f}); a gap that grows from run to run is over-optimisation")
    return text + "."


def win_rates(metrics: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Readable name → interval, of every `win_rate*` among flat metrics: against SFT first, the gold judge first."""
    found = []
    for name in sorted(key.removesuffix(".mean") for key in metrics if key.startswith("win_rate") and key.endswith(".mean")):
        judge, _, against = name.removeprefix("win_rate").partition("_vs_")
        controlled = judge.endswith("_lc")
        judge = judge.removesuffix("_lc").strip("_").replace("_", " ")
        judge = {"": "gold judge", "judge": "reward model"}.get(judge, judge)
        opponent = {"sft": "SFT"}.get(against, against)
        title = f"final vs {opponent}, {judge}" + (", equal length" if controlled else "")
        found.append(((against != "sft", judge != "gold judge", controlled), title, {end: metrics[f"{name}.{end}"] for end in ("mean", "low", "high")}))
    return {title: row for _, title, row in sorted(found, key=lambda entry: entry[0])}


def label(name: str) -> str:
    """How a reader calls a metric."""
    if name in UNITS:
        return UNITS[name][0]
    return f"reward ({name.removeprefix('reward.')})" if name.startswith("reward.") else name.replace("_", " ")


def number(value: Any, name: str = "") -> str:
    """A metric's number as its unit wants it; what is missing is an en dash, text stays text."""
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return format(value, UNITS[name][1] if name in UNITS else ".3g" if abs(value) >= 1000 or 0 < abs(value) < 0.01 else ".3f")


def interval(row: Mapping[str, float] | None) -> str:
    """`61.2 % [55.0 %, 67.1 %]`."""
    return f"{row['mean']:.1%} [{row['low']:.1%}, {row['high']:.1%}]" if row else "–"


def _table(arms: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    names = list(dict.fromkeys(name for numbers in arms.values() for name in numbers))
    return {"titles": list(arms), "rows": [(name, [arms[title].get(name) for title in arms]) for name in names]}


def _rounds(rows: list[Mapping[str, Any]]) -> dict[str, Any]:
    names = list(dict.fromkeys(name for row in rows for name, value in row.items() if isinstance(value, int | float)))
    return {"names": names, "rows": [[row.get(name) for name in names] for row in rows]}


def _inline(path: Path) -> dict[str, Any]:
    """The picture as a data URI, and its width in CSS pixels (drawn at 150 dots an inch, shown at 96)."""
    data = path.read_bytes()
    return {"src": "data:image/png;base64," + base64.b64encode(data).decode(), "width": round(int.from_bytes(data[16:20], "big") * 96 / 150)}
