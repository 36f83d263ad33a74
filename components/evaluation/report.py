"""HTML report of a run: one self-contained page with all figures. A script filters the transcripts; without
it they are a plain list.

`results` is the output of the evaluation stage. Every part is optional; a missing part omits its section:
    recipe, about     the name of the run's recipe and its one sentence
    arms              title (base, SFT, final) → {metric: number}
    metrics           flat numbers, intervals as `<name>.mean`, `.low`, `.high` (`win_rate_vs_sft`, ...)
    verdict           what `gates.check_gates` returned
    rounds            [{round, reward.<name>, gold, kl, length, ...}]
    measure           the headline metric (`reward.instructions`), `measure_name` its display name; its gains
                      are in `metrics` as `<measure>_gain_vs_sft` and `<measure>_gain_vs_base`; values in 0..1
                      are shown as rates, others as numbers
    slices            name of a tag → its value → title → interval with `n`, of the rate of the measure
    proxy_gold        [{round, proxy, gold, gold_low, gold_high}]: the reward model's mean score and the true
                      rate
    contrasts         [{arm, against, key}] by title, if the recipe names its arms: the comparisons, whose
                      metrics end in `_vs_<key>`; without it final against SFT and base
    quality           metric → title → interval; `quality_vs_base` metric → interval of final − base
    certificates      name → certificate of each reward model, which may have `by_kind` (kind → interval of
                      accuracy) and `best_of_n` (n → interval of the true rate, `rises` the interval of its
                      rise from the smallest n to the largest)
    pairs_from        `verifier` if a verifier labelled the certificates' pairs; human labels otherwise
    gold              the gold measure's certificate
    lengths           title → tokens of each answer          curves   name → [[step, value], ...]
    transcripts       [{prompt: messages, human, answers: {title: text}, gold: {title: score},
                      verified: {title: passed}, tags: {name: value}}]
    lineage           [{name, digest, ...}]                  configuration   mapping or text
    sources           name of each data source, if there are several → its address, records and groups by
                      split
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ratchet.components.evaluation import plots
from ratchet.components.evaluation.report_format import (
    interval,
    is_rate,
    label,
    number,
    numbers,
    pictured,
    points,
    tag_label,
)
from ratchet.components.evaluation.report_headline import headline, measure_name
from ratchet.components.evaluation.transcripts import prepared

HERE = Path(__file__).parent
TEMPLATE, STYLE, SCRIPT = "report.html.j2", "report.css.j2", "report.js.j2"
PICTURES = ("win_rates", "rounds", "lengths", "training", "proxy_gold")
OPTIONAL = (
    "recipe",
    "about",
    "verdict",
    "certificates",
    "gold",
    "lineage",
    "sources",
    "slices",
    "proxy_gold",
    "quality",
    "quality_vs_base",
    "measure",
    "measure_name",
    "pairs_from",
)


def write_report(out: Path, results: Mapping[str, Any]) -> Path:
    """Write `out/report.html` and its figures as `out/plots/*.png`; returns the page. Model and user text is
    escaped. Deterministic bytes.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    out = Path(out)
    out.mkdir(parents=True, exist_ok=True)
    pictures = dict.fromkeys(PICTURES) | {
        name: _inline(path) for name, path in draw(results, out / "plots").items()
    }
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FileSystemLoader(HERE),
    )
    environment.filters |= {
        "label": label,
        "tag_label": tag_label,
        "number": number,
        "interval": interval,
        "points": points,
        "numbers": numbers,
        "pictured": pictured,
    }
    configuration = results.get("configuration")
    script = (HERE / SCRIPT).read_text(encoding="utf-8") if results.get("transcripts") else ""
    page = environment.get_template(TEMPLATE).render(
        results=dict.fromkeys(OPTIONAL) | dict(results),
        style=Markup((HERE / STYLE).read_text(encoding="utf-8")),
        script=Markup(script),
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        headline=headline(results),
        pictures=pictures,
        arms=_table(results),
        differences=_differences(results),
        prompts=_prompts(results.get("metrics") or {}),
        rounds=_rounds(results.get("rounds") or []),
        slices={name: _slices(rows) for name, rows in (results.get("slices") or {}).items()},
        measure_name=measure_name(results),
        rate=is_rate(results),
        unit="rate" if is_rate(results) else "",
        transcripts=prepared(results.get("transcripts") or []),
        wins=win_rates(results.get("metrics") or {}, results.get("contrasts")),
        quality_against=quality_against(results),
        analyses=_analyses(results),
        configuration=configuration
        if isinstance(configuration, str | None)
        else json.dumps(configuration, indent=1, default=str),
    )
    target = out / "report.html"
    target.write_text(page, encoding="utf-8")
    return target


def draw(results: Mapping[str, Any], folder: Path) -> dict[str, Path]:
    """Draw every figure for which `results` has data: name → file."""
    made: dict[str, Path] = {}
    if wins := win_rates(results.get("metrics") or {}, results.get("contrasts")):
        made["win_rates"] = plots.win_rates(wins, folder / "win_rates.png")
    if results.get("rounds"):
        made["rounds"] = plots.rounds(results["rounds"], folder / "rounds.png")
    for name, rows in (results.get("slices") or {}).items():
        shown = {value.replace("_", " "): row for value, row in rows.items()}
        made[f"slices_{name}"] = plots.slices(
            shown,
            folder / f"slices_{name}.png",
            title=f"{measure_name(results).capitalize()} by {tag_label(name)}",
            rate=is_rate(results),
        )
    if results.get("proxy_gold"):
        made["proxy_gold"] = plots.proxy_gold(
            results["proxy_gold"], folder / "proxy_gold.png", rate=is_rate(results)
        )
    if results.get("lengths"):
        made["lengths"] = plots.lengths(results["lengths"], folder / "lengths.png")
    certificates = results.get("certificates") or {}
    for name, certificate in certificates.items():
        made |= plots.certificate(certificate, folder, suffix=f"_{name}" if len(certificates) > 1 else "")
    if results.get("curves"):
        made["training"] = plots.training(results["curves"], folder / "training.png")
    return made


def quality_against(results: Mapping[str, Any]) -> dict[str, Any]:
    """Heading → differences of the quality measures: final − base, or every contrast of a recipe with arms of
    its own.
    """
    own = results.get("contrasts") or [{"arm": "final", "against": "base", "key": "base"}]
    found = {f"{one['arm']} − {one['against']}": results.get(f"quality_vs_{one['key']}") for one in own}
    return {heading: rows for heading, rows in found.items() if rows}


def win_rates(
    metrics: Mapping[str, Any], contrasts: Sequence[Mapping[str, str]] | None = None
) -> dict[str, dict[str, float]]:
    """Display name → interval of every `win_rate*` in flat metrics: against SFT first, gold measure first."""
    found = []
    for name in sorted(
        key.removesuffix(".mean") for key in metrics if key.startswith("win_rate") and key.endswith(".mean")
    ):
        scorer, _, against = name.removeprefix("win_rate").partition("_vs_")
        controlled = scorer.endswith("_lc")
        scorer = scorer.removesuffix("_lc").strip("_").replace("_", " ")
        scorer = scorer or "gold measure"
        arm, opponent = _arms_of(against, contrasts)
        title = f"{arm} vs {opponent}, {scorer}" + (", equal length" if controlled else "")
        found.append(
            (
                (against != "sft", scorer != "gold measure", controlled),
                title,
                {end: metrics[f"{name}.{end}"] for end in ("mean", "low", "high")},
            )
        )
    return {title: row for _, title, row in sorted(found, key=lambda entry: entry[0])}


def _arms_of(against: str, contrasts: Sequence[Mapping[str, str]] | None) -> tuple[str, str]:
    """The arm that is compared, and the other one, of a metric `..._vs_<against>`."""
    arms = {one["key"]: (one["arm"], one["against"]) for one in contrasts or ()}
    return arms.get(against, ("final", {"sft": "SFT"}.get(against, against)))


def _differences(results: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Title and interval of every `<score>_gain_vs_<arm>`."""
    metrics, measure, rows = results.get("metrics") or {}, results.get("measure"), []
    for key in metrics:
        score, gain, rest = key.partition("_gain_vs_")
        if not gain or not rest.endswith(".mean"):
            continue
        name = key.removesuffix(".mean")
        arm, opponent = _arms_of(rest.removesuffix(".mean"), results.get("contrasts"))
        found = {end: metrics[f"{name}.{end}"] for end in ("mean", "low", "high")}
        percent = score == measure and is_rate(results)
        what = measure_name(results) if score == measure else label(score)
        rows.append((f"{what}, {arm} − {opponent}", points(found) if percent else numbers(found, sign="+")))
    return rows


def _prompts(metrics: Mapping[str, Any]) -> int | None:
    """Number of held-out prompts of the comparisons; None without any."""
    counts = (int(n) for name, n in metrics.items() if name.endswith(".n") and "_vs_" in name)
    return max(counts, default=None)


def _analyses(results: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Label, description and number of every report over arms; without a number the reason."""
    configuration = results.get("configuration")
    evaluation = configuration.get("evaluate") if isinstance(configuration, Mapping) else None
    specs = {spec.get("label", spec["name"]): spec for spec in (evaluation or {}).get("reports", ())}
    undefined = results.get("undefined") or {}
    shown = {name: numbers(row, name) for name, row in (results.get("reports") or {}).items()}
    shown |= {name: f"not defined: {reason}" for name, reason in undefined.items()}
    return [(name, _described(specs.get(name, {})), text) for name, text in shown.items()]


def _described(spec: Mapping[str, Any]) -> str:
    """Piece and options of a report: `gap: arm policy, other base`."""
    options = ", ".join(
        f"{option} {value if isinstance(value, str | int | float) else ' '.join(value)}"
        for option, value in spec.items()
        if option not in ("name", "label") and value not in (None, (), [])
    )
    return f"{spec['name']}: {options}" if options else ""


def _table(results: Mapping[str, Any]) -> dict[str, Any]:
    """Metrics by arm, the headline metric first."""
    arms, measure = results.get("arms") or {}, results.get("measure")
    names = sorted(
        dict.fromkeys(name for numbers in arms.values() for name in numbers), key=lambda name: name != measure
    )
    unit = "rate" if is_rate(results) else ""
    return {
        "titles": list(arms),
        "rows": [
            (
                measure_name(results) if name == measure else label(name),
                [number(arms[title].get(name), unit if name == measure else name) for title in arms],
            )
            for name in names
        ],
    }


def _slices(rows: Mapping[str, Mapping[str, Mapping[str, float]]]) -> dict[str, Any]:
    """Table of intervals by tag value: titles, and (value, number of prompts, intervals)."""
    titles = list(dict.fromkeys(title for row in rows.values() for title in row))
    return {
        "titles": titles,
        "rows": [
            (value, max((row[t].get("n", 0) for t in row), default=0), [row.get(t) for t in titles])
            for value, row in rows.items()
        ],
    }


def _rounds(rows: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Table with a row a metric and a column a round: there are more metrics than a page is wide."""
    names = dict.fromkeys(
        name
        for row in rows
        for name, value in row.items()
        if isinstance(value, int | float) and name != "round"
    )
    return {
        "titles": [number(row.get("round"), "round") for row in rows],
        "rows": [(label(name), [number(row.get(name), name) for row in rows]) for name in names],
    }


def _inline(path: Path) -> dict[str, Any]:
    """The figure as a data URI, and its width in CSS pixels (150 dpi shown at 96)."""
    data = path.read_bytes()
    return {
        "src": "data:image/png;base64," + base64.b64encode(data).decode(),
        "width": round(int.from_bytes(data[16:20], "big") * 96 / 150),
    }
