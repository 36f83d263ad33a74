"""Names of data splits, what each holds, and their shares."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator

from ratchet.components.errors import nearest

SPLITS = (
    "sft",
    "sft_validation",
    "reward",
    "reward_validation",
    "gold",
    "gold_validation",
    "pairs",
    "pairs_validation",
    "labelled",
    "prompts",
    "prompts_validation",
    "evaluate",
    "evaluate_validation",
    "demonstrate",
    "demonstrate_validation",
    "preferences",
    "preferences_validation",
)
"""Splits with a name of their own. Any of these with a further word, `evaluate_shifted`, is a split too."""

KINDS = tuple(dict.fromkeys(name.removesuffix("_validation") for name in SPLITS))
"""Kinds of splits."""

PUBLISHED, SPLIT_COLUMN = ("train", "validation", "test"), "split"
"""Published splits, and the key of `columns` that says which column of the rows has others."""


def kind_of(split: str) -> str:
    """Builder of a split: `reward_validation` -> `reward`, `evaluate_shifted` -> `evaluate`."""
    base = split.removesuffix("_validation")
    return base if base in KINDS else next((kind for kind in KINDS if base.startswith(f"{kind}_")), base)


def is_split(name: str) -> bool:
    """Whether a split may have this name: a kind, or a kind and further words."""
    return kind_of(name) in KINDS and re.fullmatch(r"[a-z][a-z0-9_]{0,40}", name) is not None


def _split(name: str) -> str:
    if not is_split(name):
        raise ValueError(f"unknown split {name!r}{nearest(name, SPLITS)}")
    return name


Split = Annotated[str, AfterValidator(_split)]
PROMPT_SECTIONS = (
    "prompts",
    "evaluate",
    "demonstrate",
    "demonstrate_validation",
    "preferences",
    "preferences_validation",
)
"""Parts of `data` that make prompts; each may have its own `transforms`, applied after splitting."""

PAIRS, SINGLE = ("reward", "gold", "pairs"), ("labelled",)
"""Kinds of splits with preference pairs, and with single labelled answers."""

PAIR_COLUMNS = ("margin", "label_weight")
"""Columns of preference pairs that a row of data may give."""

SHARES = {
    "sft": 0.20,
    "sft_validation": 0.04,
    "reward": 0.29,
    "reward_validation": 0.09,
    "prompts": 0.10,
    "evaluate": 0.06,
    "gold": 0.14,
    "gold_validation": 0.08,
}
"""Default splits and shares, as far as the records can fill them."""
