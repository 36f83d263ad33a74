"""Sections of a recipe that stages read as well: data, its limits, certificates, gates. Every default stands here and nowhere else."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from typing_extensions import TypedDict

from ratchet.components.conform import record
from ratchet.components.errors import RecipeError
from ratchet.components.ranges import Bool, Count, Finite, Int, Natural, NotNegative, Positive, Share

Spec = Annotated[Mapping[str, Any], BeforeValidator(lambda value: {"name": value} if isinstance(value, str) else value)]
"""A piece with its options; its name alone where it has none."""
Split = Literal["sft", "sft_validation", "reward", "reward_validation", "gold", "gold_validation", "pairs", "pairs_validation",
                "labelled", "prompts", "prompts_validation", "evaluate", "evaluate_validation", "demonstrate", "demonstrate_validation",
                "preferences", "preferences_validation"]


PROMPT_SECTIONS = ("prompts", "evaluate", "demonstrate", "demonstrate_validation", "preferences", "preferences_validation")
"""The parts of `data` that make prompts to answer; each may have `transforms` of its own, applied after splitting."""


PAIRS, SINGLE = ("reward", "gold", "pairs"), ("labelled",)
"""Those that hold preference pairs, and single answers with a label."""


SHARES = {"sft": 0.20, "sft_validation": 0.04, "reward": 0.29, "reward_validation": 0.09, "prompts": 0.10,
          "evaluate": 0.06, "gold": 0.14, "gold_validation": 0.08}
"""The splits of a recipe that names none, as far as its records can fill them."""


def kind_of(split: str) -> str:
    """`reward_validation` -> `reward`: which builder makes it."""
    return split.removesuffix("_validation")



class Sizes(TypedDict, total=False):
    """Of a model: keys of its config.json."""

    num_hidden_layers: Count
    hidden_size: Count
    num_attention_heads: Count
    num_key_value_heads: Count
    head_dim: Count
    intermediate_size: Count
    vocab_size: Count
    tie_word_embeddings: Bool


@record
class Conversations:
    max_tokens: Count = 512
    min_turns: Natural = 2
    min_rating: Finite | None = None
    limit: Count | None = None


@record
class Contexts:
    transforms: Sequence[Spec] = ()
    max_tokens: Count = 256
    min_turns: Natural = 1
    max_turns: Count = 7
    per_conversation: Count = 2
    limit: Count | None = None

    def __post_init__(self) -> None:
        if self.min_turns > self.max_turns:
            raise ValueError(f"min_turns {self.min_turns} is over max_turns {self.max_turns}; no conversation has both")


@record
class Pairs:
    min_gap: NotNegative = 2.0
    positions: Annotated[Sequence[Count], Field(min_length=1)] = (8,)
    max_tokens: Count = 512
    per_topic: Count | None = None
    per_conversation: Count | None = 4
    exclude: Sequence[Finite] = (5.0,)
    limit: Count | None = None


Parser = Annotated[Literal["auto"] | Spec, Field(union_mode="left_to_right")]


@record
class DataSource:
    """One of several sources: where from, how its rows are read, which of its published splits are which, how much of it."""

    source: str
    sha256: str | None = None
    config: str | None = None
    parser: Parser = "auto"
    columns: Mapping[str, str] = field(default_factory=dict)
    splits: Mapping[Literal["train", "validation", "test", "benchmark"], str | Sequence[str]] = field(default_factory=dict)
    weight: Positive | None = None
    limit: Count | None = None


@record
class Part:
    """Of a recipe's splits: the published split that it is made from, and its share of that."""

    split: Literal["train", "validation", "test"] | None = None
    share: Positive = 1.0


@record
class Labelled:
    max_tokens: Count = 512
    limit: Count | None = None


@record
class Data:
    """Curation (`components/data/curate.py` explains each key), and its limits (`tasks/validation.py`)."""

    source: str = ""
    sha256: str | None = None
    config: str | None = None
    sources: Sequence[DataSource] = ()
    seed: Int = 0
    parser: Parser = "auto"
    columns: Mapping[str, str] = field(default_factory=dict)
    transforms: Sequence[Spec] = ()
    splits: Mapping[Split, Positive | Part] | None = None
    near_threshold: Share | None = 0.8
    decontaminate: Count | None = 13
    sft: Conversations = field(default_factory=Conversations)
    prompts: Contexts = field(default_factory=Contexts)
    evaluate: Contexts = field(default_factory=Contexts)
    demonstrate: Contexts = field(default_factory=Contexts)
    demonstrate_validation: Contexts | None = None
    preferences: Contexts = field(default_factory=Contexts)
    preferences_validation: Contexts | None = None
    reward: Pairs = field(default_factory=Pairs)
    gold: Pairs = field(default_factory=Pairs)
    pairs: Pairs = field(default_factory=Pairs)
    labelled: Labelled = field(default_factory=Labelled)
    max_dropped: Share | None = 0.25
    max_quarantined: Share = 0.02
    min_groups: Natural = 2
    min_topics: Natural = 2
    max_topic_share: Share = 0.9
    rating_range: Annotated[Sequence[Finite], Field(min_length=2, max_length=2)] | None = None
    languages: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if self.rating_range and self.rating_range[0] >= self.rating_range[1]:
            raise RecipeError(f"data.rating_range: expected the lowest rating and then the highest, got {list(self.rating_range)}")
        if self.sources and self.source:
            raise RecipeError("data: got both `source` and `sources`; expected one of them")
        weighted = [one.weight is not None for one in self.sources if not one.splits or "train" in one.splits]
        if any(weighted) and not all(weighted):
            raise RecipeError("data.sources: some have a `weight` and some have none; expected one for each source that is trained on, or for none")

    @property
    def every_source(self) -> tuple[DataSource, ...]:
        """`sources`, or the one `source`."""
        return tuple(self.sources) or (DataSource(self.source, self.sha256, self.config, self.parser, self.columns),)

    @property
    def labels(self) -> list[str]:
        """A short name of each source: the last word of its address, numbered where several have the same."""
        words = [re.split(r"[/:]", re.sub(r"[?@!=].*", "", one.source).rstrip("/"))[-1] for one in self.every_source]
        return [word if words.count(word) == 1 else f"{word}-{words[:i + 1].count(word)}" for i, word in enumerate(words)]

    def of(self, split: str) -> Conversations | Contexts | Pairs | Labelled:
        """The options of the builder that makes a split."""
        return getattr(self, split, None) or getattr(self, split.removesuffix("_validation"))


@record
class Limits:
    """Of a reward model's certificate (`components/evaluation/certificate.py`); null: none."""

    min_accuracy: Share | None = 0.5         # below the low end of the held-out accuracy (ties half), and never under chance; null: not required
    min_contrast_accuracy: Share | None = None  # below the low end of the accuracy on contrast pairs
    best_of_n_rises: Bool | None = None      # true: the low end of the rise of the true rate from n = 1 to the largest n is above 0
    min_pairs: Natural | None = 1
    max_ties: Share | None = 0.05            # share of pairs with exactly equal scores
    max_calibration_error: Share | None = None
    max_length_correlation: Share | None = None
    reload_tolerance: NotNegative | None = 1e-4   # score of the trained model in memory against the one read back
    batch_tolerance: NotNegative | None = 1e-3    # score alone against score in a batch of ours, which packs
    padding_tolerance: NotNegative | None = 1e-3  # by transformers alone against padded; both in float32, whatever the learner's precision was


@record
class Watch:
    """What each round measures besides its rewards. `gold`: the score that health rules hold the rewards against, by the gold judge
    (true) or by an annotator that writes one reward, such as a verifier. `kl_prompts`: KL to the initial policy over so many prompts."""

    gold: Bool | Spec = False
    kl_prompts: Natural = 0


@record
class Gate:
    """Bounds of a metric, strict; `interval` holds its interval's end against them instead of its mean."""

    over: Finite | None = None
    below: Finite | None = None
    interval: Bool = False
