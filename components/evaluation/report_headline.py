"""First sentences of the report page: what the final policy gained, with intervals, and what it cost."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ratchet.components.evaluation.report_format import is_rate, label, number, numbers, points


def headline(results: Mapping[str, Any]) -> str:
    """First sentences of the report: the gain of the final policy in the headline metric, or its gold win
    rate, with intervals, and its costs.
    """
    metrics = results.get("metrics") or {}
    if text := gains(results):
        return text + _cost(metrics) + "."
    if "win_rate_vs_sft.mean" not in metrics:
        return (
            "This run compares its final policy with the SFT policy by no gold or verified measure; the "
            "numbers below describe its answers."
        )
    mean, low, high = (metrics[f"win_rate_vs_sft.{end}"] for end in ("mean", "low", "high"))
    sure = (
        "better than the model it started from"
        if low > 0.5
        else "worse than the model it started from"
        if high < 0.5
        else "not distinguishable from the model it started from"
    )
    over = f", {metrics['win_rate_vs_sft.n']} prompts" if "win_rate_vs_sft.n" in metrics else ""
    text = (
        f"The final policy is {sure}: the gold measure prefers its answer to the SFT policy's in "
        f"{mean:.1%} of cases "
        f"(95% interval {low:.1%} to {high:.1%}{over})"
    )
    if "win_rate_lc_vs_sft.mean" in metrics:
        lc = [metrics[f"win_rate_lc_vs_sft.{end}"] for end in ("mean", "low", "high")]
        text += f"; with length held equal, {lc[0]:.1%} ({lc[1]:.1%} to {lc[2]:.1%})"
    return text + _cost(metrics) + "."


def gains(results: Mapping[str, Any]) -> str:
    """Gain of the final policy over SFT policy and base model in the headline metric, in points if it is a
    rate; empty without either.
    """
    metrics, measure = results.get("metrics") or {}, results.get("measure")
    found: dict[str, list[str]] = {}
    rate = is_rate(results)
    policy, own = "the final policy", results.get("contrasts")
    compared = [("sft", policy, "the SFT policy"), ("base", policy, "the base model")]
    compared = [(one["key"], one["arm"], one["against"]) for one in own] if own else compared
    for against, arm, opponent in compared:
        name = f"{measure}_gain_vs_{against}"
        if f"{name}.mean" in metrics:
            row = {end: metrics[f"{name}.{end}"] for end in ("mean", "low", "high")}
            sure = (
                "better than"
                if row["low"] > 0
                else "worse than"
                if row["high"] < 0
                else "not distinguishable from"
            )
            found.setdefault(arm, []).append(
                f"{sure} {opponent} ({points(row) if rate else numbers(row, sign='+')})"
            )
    if not found:
        return ""
    over = next(
        (
            f", {metrics[key]} prompts"
            for key in (f"{measure}_gain_vs_{against}.n" for against, _, _ in compared)
            if key in metrics
        ),
        "",
    )
    rates = [
        f"{title} {number(arm[measure], 'rate' if rate else '')}"
        for title, arm in (results.get("arms") or {}).items()
        if measure in arm
    ]
    return (
        f"By {measure_name(results)} "
        + "; ".join(f"{arm} is {' and '.join(texts)}" for arm, texts in found.items())
        + f": differences with 95% intervals{over}"
        + (f". {'Rates' if rate else 'Means'}: {', '.join(rates)}" if rates else "")
    )


def measure_name(results: Mapping[str, Any]) -> str:
    """Display name of the headline metric."""
    return results.get("measure_name") or label(results.get("measure") or "rate")


def _cost(metrics: Mapping[str, Any]) -> str:
    """Costs of the gain: change of perplexity, and over-optimisation of the reward model."""
    text = ""
    if "perplexity_ratio.mean" in metrics:
        mean, low, high = (metrics[f"perplexity_ratio.{end}"] - 1 for end in ("mean", "low", "high"))
        text += (
            f". Perplexity on the data's replies {'rose' if mean > 0 else 'fell'} by {abs(mean):.1%} "
            f"({low:+.1%} to {high:+.1%})"
        )
    if "proxy_over_gold.mean" in metrics:
        mean, low, high = (100 * metrics[f"proxy_over_gold.{end}"] for end in ("mean", "low", "high"))
        text += (
            f". The reward model it was trained on prefers it {abs(mean):.1f} points "
            f"{'more' if mean > 0 else 'less'} often than the gold measure "
            f"({low:+.1f} to {high:+.1f}); a gap that grows from run to run is over-optimisation"
        )
    return text
