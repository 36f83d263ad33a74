"""Promotion gates: bounds on metrics that a model must meet to become champion. A missing metric fails its
gate.

    gates:
      win_rate:         {over: 0.5, interval: true}    # the interval's low end must be over 0.5
      perplexity_ratio: {below: 1.3}
      distinct_2_ratio: {over: 0.7}
Bounds are strict: equality fails.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ratchet.components.errors import RecipeError, nearest
from ratchet.components.evaluation.bootstrap import enough
from ratchet.components.recipes.conform import conform
from ratchet.components.recipes.sections import Gate


def check_gates(metrics: Mapping[str, Any], gates: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """{passed, reasons: one sentence per gate, gates: {name: passed}}.

    A metric is a number, a mapping with mean, low, high and n, or flat: `win_rate.mean`, `win_rate.low`,
    `win_rate.high`, `win_rate.n`. An interval of too few units (`bootstrap.enough`) passes no gate. Without
    gates nothing passes. `RecipeError` for a gate that is misspelt or sets no bound.
    """
    if not gates:
        return {"passed": False, "reasons": ["the recipe defines no gates"], "gates": {}}
    results = {name: _gate(name, spec, metrics) for name, spec in gates.items()}
    return {
        "passed": all(passed for passed, _ in results.values()),
        "reasons": [reason for _, reason in results.values()],
        "gates": {name: passed for name, (passed, _) in results.items()},
    }


def _gate(name: str, spec: Mapping[str, Any], metrics: Mapping[str, Any]) -> tuple[bool, str]:
    gate: Gate = conform(Gate, spec, f"register.gates.{name}")
    bounds = [
        (side, bound) for side, bound in (("over", gate.over), ("below", gate.below)) if bound is not None
    ]
    if not bounds:
        raise RecipeError(
            f"register.gates.{name}: sets no bound; write `over: <number>` or `below: <number>`"
        )
    value = metrics.get(name)
    if value is None:
        value = {
            end: metrics[f"{name}.{end}"]
            for end in ("mean", "low", "high", "n")
            if f"{name}.{end}" in metrics
        }
    if value == {}:
        return (
            False,
            f"{name}: failed, the evaluation has no such "
            f"metric{nearest(name, {key.split('.')[0] for key in metrics})}",
        )
    of, _, end = name.rpartition(".")
    units = metrics.get(f"{of}.n", math.inf) if end in ("low", "high") else math.inf
    if not enough(units):
        return False, f"{name}: failed, its interval is of {units} only"
    parts = [_bound(value, side, bound, interval=gate.interval) for side, bound in bounds]
    passed = all(p for p, _ in parts)
    return passed, f"{name}: {'passed' if passed else 'failed'}, {' and '.join(text for _, text in parts)}"


def _bound(value: Any, side: str, bound: float, *, interval: bool) -> tuple[bool, str]:
    ends = value if isinstance(value, Mapping) else {"mean": value}
    end = {"over": "low", "below": "high"}[side] if interval else "mean"
    if ends.get(end) is None:
        return False, f"an interval {side} {bound:g} is required but the metric has none"
    if interval and not enough(ends.get("n", math.inf)):
        return False, f"an interval {side} {bound:g} is required but it is of {ends['n']} only"
    got = float(ends[end])
    passed = math.isfinite(got) and (got > bound if side == "over" else got < bound)
    where = f"the {end} end of its interval" if interval else "its value"
    return passed, f"{where} {got:.4g} {'is' if passed else 'is not'} {side} {bound:g}"
