"""Report on the quality of labels: a self-contained HTML page, or the same measures as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ratchet.components.labels.labels import Item, Label
from ratchet.components.labels.quality import GOOD_ERROR, SIGNIFICANCE, measure

HERE = Path(__file__).parent
TEMPLATE, STYLE = "report.html.j2", HERE.parent / "evaluation" / "report.css.j2"
SLANTED = 0.01
"""p-value below which the report mentions a preference for length (the position bias uses its interval)."""


def report(items: Sequence[Item], labels: Sequence[Label], *, title: str = "Quality of labels") -> str:
    """The HTML page. A pure function: equal items and labels give equal bytes. All text is escaped.
    `DataError` for a label of an unknown item.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    measures = measure(items, labels)
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FileSystemLoader(HERE),
    )
    environment.filters |= {"interval": interval, "effect": effect}
    return environment.get_template(TEMPLATE).render(
        title=title,
        style=Markup(STYLE.read_text(encoding="utf-8")),
        measures=measures,
        headline=headline(measures),
        findings=findings(measures),
        good_error=GOOD_ERROR,
        significance=SIGNIFICANCE,
    )


def report_json(items: Sequence[Item], labels: Sequence[Label]) -> str:
    """The measures of `quality.measure` with the page's sentences, as JSON."""
    measures = measure(items, labels)
    found = {"headline": headline(measures), "findings": findings(measures), **measures}
    return json.dumps(found, indent=1, ensure_ascii=False, allow_nan=False)


def headline(measures: Mapping[str, Any]) -> str:
    """One sentence: labels, annotators and their agreement."""
    people = len(measures["annotators"])
    text = (
        f"{measures['labels']} labels on {measures['items']} items by {people} annotator{'s' * (people != 1)}"
    )
    agreement = measures["agreement"]
    if agreement is None:
        return f"{text}; no item has two labels that could disagree, so agreement is unknown."
    return (
        f"{text}; Krippendorff's alpha is {agreement['mean']:.2f} [{agreement['low']:.2f}, "
        f"{agreement['high']:.2f}] on {agreement['n']} items with two or more labels."
    )


def findings(measures: Mapping[str, Any]) -> list[str]:
    """What needs attention, one sentence each; [] if nothing does."""
    found = []
    for name, row in measures["annotators"].items():
        if row["chance"]["verdict"] == "random":
            found.append(
                f"{name} is not distinguishable from choices at random (found after "
                f"{row['chance']['decided']} items): exclude these labels, or talk to the annotator."
            )
        elif row["chance"]["verdict"] == "poor":
            found.append(
                f"{name} errs more often than {GOOD_ERROR:.0%}, though less than by chance: "
                f"{interval(row['error'])}. Weights account for that; a talk may help."
            )
        first = row["first"]
        if first and not first["low"] <= row["first_chance"] <= first["high"]:
            side = "more" if first["mean"] > row["first_chance"] else "less"
            found.append(
                f"{name} chooses the answer shown first {side} often than by chance: {interval(first)}."
            )
    length = measures["effects"].get("log length")
    if length and length["p"] < SLANTED:
        side = "longer" if length["mean"] > 0 else "shorter"
        found.append(
            f"At equal support by others the {side} answer is preferred: {effect(length)} log-odds per unit "
            "of log length."
        )
    unknown = [name for name, row in measures["annotators"].items() if not row["chance"]["informative"]]
    if unknown:
        found.append(
            f"Nothing is known about the error of {', '.join(unknown)}: no planted item, no repeated item, "
            "and no item that others labelled too. Raise `overlap` or plant items."
        )
    return found


def interval(row: Mapping[str, float] | None) -> str:
    """Format a share: `85.0% [70.9%, 92.9%] of 40`."""
    return f"{row['mean']:.1%} [{row['low']:.1%}, {row['high']:.1%}] of {row['n']}" if row else "–"


def effect(row: Mapping[str, float] | None) -> str:
    """Format a coefficient: `+0.41 [+0.20, +0.62]`."""
    return f"{row['mean']:+.2f} [{row['low']:+.2f}, {row['high']:+.2f}]" if row else "–"
