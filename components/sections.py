"""Sections of a recipe whose defaults belong to the functions that read them: here are their keys alone, as `components/schema.py`
wants them, so that reading a recipe loads none of those functions. A test holds the two together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

Spec = Mapping[str, Any]
Split = Literal["sft", "sft_validation", "reward", "reward_validation", "gold", "gold_validation", "pairs", "pairs_validation",
                "prompts", "prompts_validation", "evaluate", "evaluate_validation", "demonstrate", "demonstrate_validation",
                "preferences", "preferences_validation"]


PROMPT_SECTIONS = ("prompts", "evaluate", "demonstrate", "demonstrate_validation", "preferences", "preferences_validation")
"""The parts of `data` that make prompts to answer; each may have `transforms` of its own, applied after splitting."""


class Sizes(TypedDict, total=False):
    """Of a model: keys of its config.json."""

    num_hidden_layers: int
    hidden_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: int
    vocab_size: int
    tie_word_embeddings: bool


class Conversations(TypedDict, total=False):
    max_tokens: int
    min_turns: int
    min_rating: float | None
    limit: int | None


class Contexts(TypedDict, total=False):
    transforms: Sequence[Spec]
    max_tokens: int
    min_turns: int
    max_turns: int
    per_conversation: int
    limit: int | None


class Pairs(TypedDict, total=False):
    min_gap: float
    positions: Sequence[int]
    max_tokens: int
    per_topic: int | None
    per_conversation: int | None
    exclude: Sequence[float]
    limit: int | None


class Data(TypedDict, total=False):
    """Curation (`components/data/curate.py` explains each key), and its limits (`tasks/validation.py`)."""

    source: str
    sha256: str | None
    seed: int
    parser: str | Spec
    columns: Mapping[str, str]
    transforms: Sequence[str | Spec]
    splits: Mapping[Split, float] | None
    near_threshold: float | None
    sft: Conversations | None
    prompts: Contexts | None
    evaluate: Contexts | None
    demonstrate: Contexts | None
    demonstrate_validation: Contexts | None
    preferences: Contexts | None
    preferences_validation: Contexts | None
    reward: Pairs | None
    gold: Pairs | None
    pairs: Pairs | None
    max_dropped: float | None
    max_quarantined: float
    min_groups: int
    min_topics: int
    max_topic_share: float
    rating_range: Sequence[float] | None
    languages: Sequence[str] | None


class Limits(TypedDict, total=False):
    """Of a reward model's certificate (`components/evaluation/certificate.py`); null: none."""

    min_accuracy: float | None
    min_contrast_accuracy: float | None
    best_of_n_rises: bool | None
    min_pairs: int | None
    max_ties: float | None
    max_calibration_error: float | None
    max_length_correlation: float | None
    reload_tolerance: float | None
    batch_tolerance: float | None
    padding_tolerance: float | None


class Watch(TypedDict, total=False):
    """What each round measures besides its rewards. `gold`: the score that health rules hold the rewards against, by the gold judge
    (true) or by an annotator that writes one reward, such as a verifier. `kl_prompts`: KL to the initial policy over so many prompts."""

    gold: bool | Spec
    kl_prompts: int


class Gate(TypedDict, total=False):
    """Bounds of a metric, strict; `interval` holds its interval's end against them instead of its mean."""

    over: float
    above: float
    below: float
    under: float
    interval: bool
