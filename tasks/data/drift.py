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

import json
import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ratchet.components.data.parquet import read_parquet
from ratchet.components.errors import redacted
from ratchet.components.storage.store import write_atomic
from ratchet.tasks.pipeline import Pipeline
from ratchet.tasks.registry.versions import champion, saved_lineage
from ratchet.tasks.tracking import alerts
from ratchet.tasks.tracking.results import paired_difference, read_evaluation, shared_scores

log = logging.getLogger("ratchet.drift")

NUMERIC = {"tokens": "length in tokens", "turns": "turns", "rating": "rating", "rating_gap": "gap of ratings"}
"""Columns compared within each split."""
CATEGORICAL = {"topic": "topic", "language": "language"}
"""Columns compared over all data."""
PSI_LIMIT, FALSE_ALARMS, BINS, FAILURE_GROWTH = 0.2, 0.01, 10, 0.005
CATEGORIES = 20  # of a column, the rest is pooled
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
    p, q = ((np.asarray(counts) + 0.5) / (sum(counts) + len(counts) / 2) for counts in (before, now))
    return float(((q - p) * np.log(q / p)).sum())


def psi_limit(bins: int, n: int, m: int, chance: float) -> float:
    """Limit of the PSI: 0.2, or higher where chance alone would exceed 0.2 with so few records."""
    from scipy.stats import chi2

    return max(PSI_LIMIT, float(chi2.ppf(1 - chance, bins - 1)) * (1 / n + 1 / m)) if bins > 1 else math.inf


def numeric_psi(before: Sequence[float], now: Sequence[float]) -> tuple[float, int]:
    """(PSI, number of bins) of two samples, over deciles of the first; a repeated decile has its own bin."""
    deciles = np.sort(np.asarray(before, float))[[len(before) * i // BINS for i in range(1, BINS)]]
    repeated = deciles[1:][deciles[1:] == deciles[:-1]]
    edges = np.unique([*deciles, *np.nextafter(repeated, math.inf)])
    bins = len(edges) + 1
    old, new = (
        np.bincount(np.searchsorted(edges, values, side="right"), minlength=bins) for values in (before, now)
    )
    return psi(old.tolist(), new.tolist()), bins


def category_psi(before: Sequence[str], now: Sequence[str]) -> tuple[float, int, str]:
    """(PSI, number of bins, name that grew most) of two lists; rare names are pooled."""
    old, new = Counter(before), Counter(now)
    named = [name for name, _ in (old + new).most_common(CATEGORIES)]
    rows = [(old[name], new[name]) for name in named]
    rest = (len(before) - sum(a for a, _ in rows), len(now) - sum(b for _, b in rows))
    rows += [rest] if any(rest) else []
    grew = max(named, key=lambda name: new[name] / len(now) - old[name] / len(before))
    return psi([a for a, _ in rows], [b for _, b in rows]), len(rows), grew


def data_shifts(before: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> list[Shift]:
    """All comparisons of two tables in the format of `statistics.parquet`, one row per group."""
    splits = dict.fromkeys(row["split"] for row in now)
    places = [*((column, split) for split in splits for column in NUMERIC), *((c, "") for c in CATEGORICAL)]
    samples: dict[tuple[str, str], list[list[Any]]] = {}
    for column, split in places:
        both = [
            [row[column] for row in rows if split in ("", row["split"]) and row[column] not in (None, "")]
            for rows in (before, now)
        ]
        if min(map(len, both)) >= BINS:
            samples[column, split] = both
    found = []
    for (column, split), (old, new) in samples.items():
        if split:
            size, bins = numeric_psi(old, new)
            texts = [f"mean {sum(values) / len(values):.4g}" for values in (old, new)]
        else:
            size, bins, grew = category_psi(old, new)
            texts = [f"{grew!r} {values.count(grew) / len(values):.0%}" for values in (old, new)]
        limit = psi_limit(bins, len(old), len(new), FALSE_ALARMS / len(samples))
        found.append(Shift((NUMERIC | CATEGORICAL)[column], split or "all data", size, limit, *texts))
    return found


def validation_shifts(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Shift]:
    """Comparison of two `validation.json`: share of groups that failed each per-row expectation."""
    n, m = before["groups"], now["groups"]
    old, new = (
        {e["says"]: e["failed"] for e in v["expectations"] if e["of"] == "rows"} for v in (before, now)
    )
    found = []
    for says in (says for says in new if says in old):
        p, q, pooled = old[says] / n, new[says] / m, (old[says] + new[says]) / (n + m)
        limit = max(FAILURE_GROWTH, 4 * math.sqrt(pooled * (1 - pooled) * (1 / n + 1 / m)))
        what = f"groups that break “{says}”"
        found.append(Shift(what, "all data", q - p, limit, f"{p:.2%}", f"{q:.2%}"))
    return found


def result_shifts(mine: Mapping[str, Any], best: Mapping[str, Any]) -> list[Shift]:
    """How far a run's evaluation is behind the champion's, for each score measured on the same prompts;
    positive is worse. Counts as drift if the whole 99 % interval is worse. Not a promotion test, so it
    spends none of the champion comparison's error budget.
    """
    found = []
    for score in (score for score in shared_scores(mine, best) if score != "length"):
        interval = paired_difference(mine, best, score, level=0.99)
        half_width = interval["high"] - interval["mean"]
        ours, theirs = (sum(e["per_prompt"][score]) / len(e["per_prompt"][score]) for e in (mine, best))
        texts = f"champion {theirs:.4g}", f"this run {ours:.4g}"
        found.append(Shift(f"mean {score}", "held-out prompts", -interval["mean"], half_width, *texts))
    return found


def last_run(pipeline: Pipeline) -> Path | None:
    """The newest other finished run of the same recipe in this home that curated data."""
    runs = []
    for file in pipeline.run.path.parent.glob("*/run.json"):
        state = json.loads(file.read_text())
        alike = state.get("recipe") == pipeline.recipe.name and state.get("state") == "finished"
        if alike and file.parent.name != pipeline.run.name and _statistics(file.parent).exists():
            runs.append((state.get("ended", 0.0), file.parent))
    return max(runs)[1] if runs else None


def _statistics(run: Path) -> Path:
    return run / "stages" / "curated" / "statistics.parquet"


def check_data_drift(pipeline: Pipeline) -> list[Shift]:
    """Compare the curated data with the last run's; write the result and alert."""
    return _report(pipeline, "data", _against_last_run)


def check_result_drift(pipeline: Pipeline) -> list[Shift]:
    """Compare the evaluation with the champion's before it may be replaced; write the result, alert."""
    return _report(pipeline, "results", _against_champion)


def _against_last_run(pipeline: Pipeline) -> tuple[str, list[Shift]] | None:
    before = last_run(pipeline)
    if before is None:
        return None
    old, new = _statistics(before).parent.resolve(), pipeline.artifact("curated").path.resolve()
    if old == new:
        return before.name, []
    tables = [list(read_parquet(place / "statistics.parquet")) for place in (old, new)]
    reports = [json.loads((place / "validation.json").read_text()) for place in (old, new)]
    return before.name, data_shifts(*tables) + validation_shifts(*reports)


def _against_champion(pipeline: Pipeline) -> tuple[str, list[Shift]] | None:
    home, register = pipeline.store.home, pipeline.recipe.register
    if register is None or "evaluate" not in pipeline.stages:
        return None
    best = champion(register.model, home=home)
    if best is None:
        return None
    theirs = (saved_lineage(best, home=home) or {}).get("results") or {}
    return f"{best.name} version {best.version}", result_shifts(read_evaluation(pipeline.run.path), theirs)


def _report(
    pipeline: Pipeline, kind: str, compare: Callable[[Pipeline], tuple[str, list[Shift]] | None]
) -> list[Shift]:
    """Compare, add the result to `drift.json`, alert, and return what moved. An error is only logged."""
    try:
        compared = compare(pipeline)
        if compared is None:
            return []
        against, found = compared
        moved = [shift for shift in found if shift.moved]
        file, texts = pipeline.run.path / "drift.json", [str(shift) for shift in moved]
        known = json.loads(file.read_text()) if file.exists() else {}
        known[kind] = {"against": against, "moved": texts, "compared": [asdict(s) for s in found]}
        write_atomic(file, json.dumps(known, indent=1, ensure_ascii=False))
        if moved:
            message = f"{pipeline.run.name}: {kind} drifted from {against}: {'; '.join(texts)}"
            log.warning(message)
            payload = {"recipe": pipeline.recipe.name, "kind": kind, "moved": texts}
            alerts.emit_alert(EVENT, pipeline.run.name, message, payload)
        return moved
    except Exception as error:
        text = redacted(f"{type(error).__name__}: {error}")
        log.warning("drift of %s could not be checked: %s", kind, text)
        return []
