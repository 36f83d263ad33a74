"""How the report page writes metrics: display names, units, intervals."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ratchet.components.text.images import MARK

DATA_URL = re.compile(r"data:image/(png|jpeg|gif|webp);base64,[A-Za-z0-9+/]+=*")

NBSP = "\u00a0"
UNITS = {  # metric → how a reader calls it, number of decimals or per cent
    "length": ("length, tokens", ".1f"),
    "truncated": ("cut by the limit", ".1%"),
    "ended": ("end by themselves", ".1%"),
    "empty": ("empty", ".1%"),
    "refusal_like": ("refusal-like", ".1%"),
    "repetitive": ("repetitive", ".1%"),
    "personal_data": ("with personal data", ".1%"),
    "distinct_1": ("distinct words", ".3f"),
    "distinct_2": ("distinct word pairs", ".3f"),
    "self_bleu": ("self-BLEU", ".3f"),
    "embedding_spread": ("spread of meaning", ".3f"),
    "perplexity": ("perplexity on the data's replies", ".2f"),
    "gold": ("gold score", ".3f"),
    "gold.error": ("standard error of the gold score", ".3f"),
    "kl": ("KL to SFT, nats an answer (drawn answers)", ".2f"),
    "entropy": ("entropy, nats a token", ".2f"),
    "rate": ("rate", ".1%"),
    "responses": ("responses", ".0f"),
    "equal_rewards": ("prompts with equal rewards", ".1%"),
    "round": ("round", ".0f"),
}


def is_rate(results: Mapping[str, Any]) -> bool:
    """Whether the headline metric reads as per cent: its values lie in 0..1 in every arm and for every prompt
    of the final one. Returns of an environment do not.
    """
    measure = results.get("measure")
    means = [arm[measure] for arm in (results.get("arms") or {}).values() if measure in arm]
    final = (results.get("per_prompt") or {}).get(f"final.{measure}") or ()
    return all(0 <= value <= 1 for value in (*means, *final))


def label(name: str) -> str:
    """Display name of a metric."""
    if name in UNITS:
        return UNITS[name][0]
    return (
        f"reward ({name.removeprefix('reward.')})" if name.startswith("reward.") else name.replace("_", " ")
    )


def tag_label(name: str) -> str:
    """Display name of a tag: `instruction.kind` is "instruction kind"."""
    return re.sub(r"[._]", " ", name)


def number(value: Any, name: str = "") -> str:
    """Format a metric in its unit; a missing value is an en dash, text is unchanged."""
    if value is None:
        return "–"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return format(
        value,
        UNITS[name][1] if name in UNITS else ".3g" if abs(value) >= 1000 or 0 < abs(value) < 0.01 else ".3f",
    )


def interval(row: Mapping[str, float] | None) -> str:
    """Format a rate: `61.2% [55.0%, 67.1%]`, interval without line break."""
    return f"{row['mean']:.1%} [{row['low']:.1%},{NBSP}{row['high']:.1%}]" if row else "–"


def points(row: Mapping[str, float] | None) -> str:
    """Format a difference of rates: `+4.2 points [+1.0, +7.4]`."""
    return (
        f"{100 * row['mean']:+.1f} points [{100 * row['low']:+.1f},{NBSP}{100 * row['high']:+.1f}]"
        if row
        else "–"
    )


def numbers(row: Mapping[str, float] | None, name: str = "", sign: str = "") -> str:
    """Format an interval in the metric's unit: `21.40 [20.90, 22.00]`; with `sign="+"` as a difference."""
    if not row:
        return "–"
    mean, low, high = (
        ("+" if sign and row[end] > 0 else "") + number(row[end], name) for end in ("mean", "low", "high")
    )
    return f"{mean} [{low},{NBSP}{high}]"


def pictured(text: str, images: Mapping[str, str] | None) -> Any:
    """Text as HTML, escaped, with the picture in place of the mark of each of `images` (digest -> data
    URL).
    """
    from markupsafe import Markup, escape

    parts = MARK.split(text)  # text, digest, text, digest, ...
    made = [escape(part) for part in parts]
    for i in range(1, len(parts), 2):
        url = (images or {}).get(parts[i], "")
        made[i] = (
            Markup('<img src="{}" alt="image {}">').format(url, parts[i])
            if DATA_URL.fullmatch(url)
            else escape(f"<image:{parts[i]}>")
        )
    return Markup("").join(made)
