"""Drift detection: compares a run's data with the last run's, and its results with the champion's. Writes
`<run>/drift.json` and emits an alert event; never stops a run.

Distributions are compared by the population stability index (PSI), the sum over bins of (p - q) ln(p / q),
with the last run's deciles as bins. A PSI over 0.2 is conventionally significant. With n and m records,
chance gives (1/n + 1/m) chi-squared(bins - 1) (Yurdakul, "Statistical Properties of the Population Stability
Index", 2018), so the limit is at least the value that chance exceeds once in a hundred runs, over all
comparisons (Bonferroni). The share of groups that fail a Great Expectations check has drifted if it grew by
more than 0.5 percentage points and more than four standard errors.
"""

from __future__ import annotations

import bisect
import json
import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ratchet.components.errors import redacted
from ratchet.components.storage.store import write_atomic
from ratchet.tasks.pipeline import Pipeline

log = logging.getLogger("ratchet.drift")

NUMERIC = {
    "tokens": "length in tokens",
    "turns": "turns",
    "rating": "rating",
    "rating_gap": "gap of ratings",
}  # by split
CATEGORICAL = {"topic": "topic", "language": "language"}  # over all
PSI_LIMIT, FALSE_ALARMS, BINS, FAILURE_GROWTH = 0.2, 0.01, 10, 0.005
EVENT = "ratchet.drift"


@dataclass(frozen=True)
class Shift:
    """One comparison: quantity, place, effect size, limit, and both values as text."""

    what: str
    where: str
    size: float
    limit: float
    before: str
    now: str

    @property
    def moved(self) -> bool:
        return self.size > self.limit

    def __str__(self) -> str:
        return (
            f"{self.what} of {self.where}: {self.before} -> {self.now} ({self.size:.2g}, limit "
            f"{self.limit:.2g})"
        )


def psi(before: Sequence[int], now: Sequence[int]) -> float:
    """PSI of two histograms over the same bins, with half a record added to each bin."""
    n, m, bins = sum(before), sum(now), len(before)
    shares = [
        ((a + 0.5) / (n + bins / 2), (b + 0.5) / (m + bins / 2)) for a, b in zip(before, now, strict=True)
    ]
    return sum((q - p) * math.log(q / p) for p, q in shares)


def psi_limit(bins: int, n: int, m: int, chance: float) -> float:
    """Limit of the PSI: 0.2, or higher where chance alone would exceed 0.2 with so few records."""
    from scipy.stats import chi2

    return max(PSI_LIMIT, float(chi2.ppf(1 - chance, bins - 1)) * (1 / n + 1 / m)) if bins > 1 else math.inf


def numeric_psi(before: Sequence[float], now: Sequence[float]) -> tuple[float, int]:
    """(PSI, number of bins) of two samples, over the deciles of the first. Equal values share a bin."""
    ordered = sorted(before)
    edges = sorted({ordered[len(ordered) * i // BINS] for i in range(1, BINS)})
    counts = [[0] * (len(edges) + 1) for _ in range(2)]
    for side, values in zip(counts, (before, now), strict=True):
        for value in values:
            side[bisect.bisect_right(edges, value)] += 1
    return psi(*counts), len(edges) + 1


def category_psi(before: Sequence[str], now: Sequence[str], most: int = 20) -> tuple[float, int, str]:
    """(PSI, number of bins, name that grew most) of two lists of categories: the `most` frequent ones, the
    rest pooled.
    """
    old, new = Counter(before), Counter(now)
    named = [name for name, _ in (old + new).most_common(most)]
    rows = [(old[name], new[name]) for name in named]
    rest = (len(before) - sum(a for a, _ in rows), len(now) - sum(b for _, b in rows))
    rows += [rest] if any(rest) else []
    grew = max(named, key=lambda name: new[name] / len(now) - old[name] / len(before), default="")
    return psi([a for a, _ in rows], [b for _, b in rows]), len(rows), grew


def data_shifts(before: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> list[Shift]:
    """All comparisons of two tables in the format of `statistics.parquet`, one row per group."""
    comparisons: list[tuple[str, str, list[Any], list[Any]]] = []
    for split in dict.fromkeys(row["split"] for row in now):
        for column in NUMERIC:
            comparisons.append(
                (  # pyright: ignore[reportArgumentType]
                    column,
                    split,
                    *(
                        [r[column] for r in rows if r["split"] == split and r[column] is not None]
                        for rows in (before, now)
                    ),
                )
            )
    for column in CATEGORICAL:
        comparisons.append(
            (column, "all data", *([r[column] for r in rows if r[column]] for rows in (before, now)))  # pyright: ignore[reportArgumentType]
        )
    comparisons = [a for a in comparisons if len(a[2]) >= BINS and len(a[3]) >= BINS]
    chance = FALSE_ALARMS / max(1, len(comparisons))
    found = []
    for column, where, old, new in comparisons:
        if column in CATEGORICAL:
            size, bins, grew = category_psi(old, new)
            values_text = [
                f"{grew!r} {sum(v == grew for v in values) / len(values):.0%}" for values in (old, new)
            ]
        else:
            size, bins = numeric_psi(old, new)
            values_text = [f"mean {sum(values) / len(values):.4g}" for values in (old, new)]
        found.append(
            Shift(
                (NUMERIC | CATEGORICAL)[column],
                where,
                size,
                psi_limit(bins, len(old), len(new), chance),
                *values_text,
            )
        )
    return found


def validation_shifts(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Shift]:
    """Comparison of two `validation.json`: share of groups that failed each per-row expectation."""
    old = {e["says"]: e["failed"] for e in before["expectations"] if e["of"] == "rows"}
    found = []
    for one in now["expectations"]:
        if one["of"] == "rows" and one["says"] in old:
            p, q = old[one["says"]] / before["groups"], one["failed"] / now["groups"]
            pooled = (old[one["says"]] + one["failed"]) / (before["groups"] + now["groups"])
            error = math.sqrt(pooled * (1 - pooled) * (1 / before["groups"] + 1 / now["groups"]))
            found.append(
                Shift(
                    f"groups that break “{one['says']}”",
                    "all data",
                    q - p,
                    max(FAILURE_GROWTH, 4 * error),
                    f"{p:.2%}",
                    f"{q:.2%}",
                )
            )
    return found


def result_shifts(mine: Mapping[str, Any], champion: Mapping[str, Any]) -> list[Shift]:
    """How far a run's evaluation is behind the champion's, for each score measured on the same prompts;
    positive is worse. Counts as drift if the whole 99 % interval is worse. Not a promotion test, so it
    spends none of the champion comparison's error budget.
    """
    from ratchet.tasks.tracking.results import paired, shared_scores

    found = []
    for score in shared_scores(mine, champion):
        interval = paired(mine, champion, score, level=0.99)
        if score != "length":
            half_width = (
                interval["high"] - interval["mean"]
            )  # drift: -mean > half_width, the upper end is below zero
            ours, theirs = (
                sum(e["per_prompt"][score]) / len(e["per_prompt"][score]) for e in (mine, champion)
            )
            found.append(
                Shift(
                    f"mean {score}",
                    "held-out prompts",
                    -interval["mean"],
                    half_width,
                    f"champion {theirs:.4g}",
                    f"this run {ours:.4g}",
                )
            )
    return found


# --- in a run
# --------------------------------------------------------------------------------------------------------


def last_run(pipeline: Pipeline) -> Path | None:
    """The newest other finished run of the same recipe in this home."""
    runs = []
    for file in pipeline.run.path.parent.glob("*/run.json"):
        state = json.loads(file.read_text())
        if (
            file.parent.name != pipeline.run.name
            and state.get("recipe") == pipeline.recipe.name
            and state.get("state") == "finished"
        ):
            runs.append((state.get("ended", 0.0), file.parent))
    return max(runs)[1] if runs else None


def check_data_drift(pipeline: Pipeline) -> list[Shift]:
    """Compare the curated data with the last run's; write the result and alert."""
    try:
        before = last_run(pipeline)
        if before is None or not (before / "stages" / "curated" / "statistics.parquet").exists():
            return []
        from ratchet.components.data.parquet import read_parquet

        old, new = before / "stages" / "curated", pipeline.artifact("curated").path
        found: list[Shift] = []
        if old.resolve() != new.resolve():
            found = data_shifts(*(list(read_parquet(place / "statistics.parquet")) for place in (old, new)))
            found += validation_shifts(
                *(json.loads((place / "validation.json").read_text()) for place in (old, new))
            )
        return _write_and_alert(pipeline, "data", before.name, found)
    except Exception as error:
        return _failed("data", error)


def check_result_drift(pipeline: Pipeline) -> list[Shift]:
    """Compare the evaluation with the champion's before it may be replaced; write the result, alert."""
    try:
        if pipeline.recipe.register is None or "evaluate" not in pipeline.stages:
            return []
        from ratchet.tasks.registry.versions import champion, saved_lineage
        from ratchet.tasks.tracking.results import evaluation

        best = champion(pipeline.recipe.register.model, home=pipeline.store.home)
        if best is None:
            return []
        theirs = (saved_lineage(best, home=pipeline.store.home) or {}).get("results") or {}
        return _write_and_alert(
            pipeline,
            "results",
            f"{best.name} version {best.version}",
            result_shifts(evaluation(pipeline.run.path), theirs),
        )
    except Exception as error:
        return _failed("results", error)


def _write_and_alert(pipeline: Pipeline, kind: str, against: str, found: Sequence[Shift]) -> list[Shift]:
    file = pipeline.run.path / "drift.json"
    known = json.loads(file.read_text()) if file.exists() else {}
    moved = [shift for shift in found if shift.moved]
    write_atomic(
        file,
        json.dumps(
            {
                **known,
                kind: {
                    "against": against,
                    "moved": [str(s) for s in moved],
                    "compared": [asdict(s) for s in found],
                },
            },
            indent=1,
            ensure_ascii=False,
        ),
    )
    if moved:
        from ratchet.tasks.tracking.alerts import emit_alert

        message = f"{pipeline.run.name}: {kind} drifted from {against}: " + "; ".join(map(str, moved))
        log.warning(message)
        emit_alert(
            EVENT,
            pipeline.run.name,
            message,
            {"recipe": pipeline.recipe.name, "kind": kind, "moved": [str(s) for s in moved]},
        )
    return moved


def _failed(kind: str, error: Exception) -> list[Shift]:
    log.warning("drift of %s could not be checked: %s", kind, redacted(f"{type(error).__name__}: {error}"))
    return []
