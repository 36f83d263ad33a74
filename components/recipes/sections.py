"""Schema of recipe sections that stages read too: data, certificates, gates. The field comments become
the page docs/recipe-keys.md.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field
from typing_extensions import TypedDict

from ratchet.components.errors import RecipeError, nearest
from ratchet.components.recipes.conform import record
from ratchet.components.recipes.ranges import (
    Bool,
    Count,
    Finite,
    Natural,
    NotNegative,
    Positive,
    PositiveShare,
    Seed,
    Share,
)
from ratchet.components.recipes.splits import PUBLISHED, SPLIT_COLUMN, Split, kind_of

Spec = Annotated[
    Mapping[str, Any], BeforeValidator(lambda value: {"name": value} if isinstance(value, str) else value)
]
"""A piece with its options, or its name only."""


class Sizes(TypedDict, total=False):
    """Model dimensions: keys of a config.json."""

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
    """Conversations for SFT."""

    # prompt and answers together; cut after the last answer that fits, dropped if none does
    max_tokens: Count = 512
    min_turns: Natural = 2  # shorter conversations are dropped
    min_rating: Finite | None = None  # lower rated ones are dropped
    limit: Count | None = None  # largest number of groups


@record
class Contexts:
    """Prompts, cut from conversations."""

    transforms: Sequence[Spec] = ()  # applied to this split only, after splitting
    max_tokens: Count = 256  # of the prompt alone; longer prompts are dropped
    min_turns: Natural = 1  # of the prompt
    max_turns: Count = 7  # of the prompt
    per_conversation: Count = 2  # prompts from one conversation
    limit: Count | None = None  # largest number of prompts

    def __post_init__(self) -> None:
        if self.min_turns > self.max_turns:
            raise ValueError(f"min_turns {self.min_turns} is greater than max_turns {self.max_turns}")


@record
class Pairs:
    """Preference pairs: given ones, or made from ratings."""

    min_gap: NotNegative = 2.0  # smallest difference of two ratings that makes a pair
    positions: Annotated[Sequence[Count], Field(min_length=1)] = (
        8,
    )  # turns after which rated conversations are compared
    max_tokens: Count = 512  # prompt and longer answer together; longer pairs are dropped
    per_topic: Count | None = None  # pairs per topic and position; null: any
    per_conversation: Count | None = 4  # pairs per conversation and position; null: any
    exclude: Sequence[Finite] = ()  # ratings to ignore, such as a form's default
    limit: Count | None = None  # largest number of pairs


Parser = Annotated[Literal["auto"] | Spec, Field(union_mode="left_to_right")]


@record
class DataSource:
    """One of several data sources."""

    source: str  # address
    sha256: str | None = None  # of the file; null: not pinned
    config: str | None = None  # configuration of a published data set
    parser: Parser = "auto"  # data layout
    columns: Mapping[str, str] = field(default_factory=dict)  # the layout's column (or `split`) -> yours
    splits: Mapping[Literal["train", "validation", "test", "benchmark"], str | Sequence[str]] = field(
        default_factory=dict
    )  # published split -> files or names
    weight: Positive | None = None  # share of the mixture
    limit: Count | None = None  # largest number of records


@record
class Part:
    """A split of the recipe, made from a share of a published split."""

    split: str | None = None  # published split, or value of the rows' split column; null: by the split's name
    share: Positive = 1.0  # of that published split


@record
class Labelled:
    """Single answers with a label, good or bad."""

    max_tokens: Count = 512  # prompt and answer together; longer records are dropped
    limit: Count | None = None  # largest number of groups


@record
class Data:
    """Curation and validation of the data: [Data](data.md)."""

    source: str = ""  # address
    sha256: str | None = None  # of the file; null: not pinned
    config: str | None = None  # configuration of a published data set
    sources: Sequence[DataSource] = ()  # several sources, in place of one
    seed: Seed = 0  # of splitting
    parser: Parser = "auto"  # data layout
    columns: Mapping[str, str] = field(default_factory=dict)  # the layout's column (or `split`) -> yours
    transforms: Sequence[Spec] = ()  # applied to all records, in order
    # split -> share, or published split and share; null: those that the recipe reads, in fixed shares
    splits: Mapping[Split, Positive | Part] | None = None
    # similarity at which near copies across splits are dropped; null: not compared
    near_threshold: Share | None = 0.8
    # length of a shared word n-gram that removes a training record; null: off
    decontaminate: Count | None = 13
    sft: Conversations = field(default_factory=Conversations)  # options of the split
    prompts: Contexts = field(default_factory=Contexts)  # options of the split
    evaluate: Contexts = field(default_factory=Contexts)  # options of the split
    demonstrate: Contexts = field(default_factory=Contexts)  # options of the split
    demonstrate_validation: Contexts | None = None  # null: those of demonstrate
    preferences: Contexts = field(default_factory=Contexts)  # options of the split
    preferences_validation: Contexts | None = None  # null: those of preferences
    reward: Pairs = field(default_factory=Pairs)  # options of the split
    gold: Pairs = field(default_factory=Pairs)  # options of the split
    pairs: Pairs = field(default_factory=Pairs)  # options of the split
    labelled: Labelled = field(default_factory=Labelled)  # options of the split
    max_dropped: Share | None = 0.25  # share of records that may be lost; null: any
    max_quarantined: Share = 0.02  # share of groups that may fail validation
    min_groups: Natural = 2  # in every split
    min_topics: Natural = 2  # in every split
    max_topic_share: PositiveShare = 0.9  # of one topic in a split
    # lowest and highest rating
    rating_range: Annotated[Sequence[Finite], Field(min_length=2, max_length=2)] | None = None
    languages: Sequence[str] | None = None  # allowed languages; null: any

    def __post_init__(self) -> None:
        if self.rating_range and self.rating_range[0] >= self.rating_range[1]:
            raise RecipeError(
                "data.rating_range: expected the lowest rating and then the highest, got "
                f"{list(self.rating_range)}"
            )
        if self.sources and self.source:
            raise RecipeError("data: got both `source` and `sources`; expected one of them")
        if not any(SPLIT_COLUMN in one.columns for one in self.every_source):
            for name, part in (self.splits or {}).items():
                if isinstance(part, Part) and part.split and part.split not in PUBLISHED:
                    hint = nearest(part.split, PUBLISHED).partition("; known")[0]
                    raise RecipeError(
                        f"data.splits.{name}.split: {part.split!r} is not one of {', '.join(PUBLISHED)}{hint}"
                    )
        weighted = [one.weight is not None for one in self.sources if not one.splits or "train" in one.splits]
        if any(weighted) and not all(weighted):
            raise RecipeError(
                "data.sources: only some sources have a `weight`; expected a weight for every training "
                "source, or for none"
            )

    @property
    def every_source(self) -> tuple[DataSource, ...]:
        """`sources`, or the single `source` as a tuple."""
        return tuple(self.sources) or (
            DataSource(self.source, self.sha256, self.config, self.parser, self.columns),
        )

    @property
    def labels(self) -> list[str]:
        """A short name of each source: the last word of its address, numbered if not unique."""
        words = [
            re.split(r"[/:]", re.sub(r"[?@!=].*", "", one.source).rstrip("/"))[-1]
            for one in self.every_source
        ]
        labels: list[str] = []
        for word in words:
            numbered = (f"{word}-{number}" for number in itertools.count(1))
            taken = {*words, *labels}
            labels.append(
                word if words.count(word) == 1 else next(name for name in numbered if name not in taken)
            )
        return labels

    def of(self, split: str) -> Conversations | Contexts | Pairs | Labelled:
        """The builder options of a split."""
        return getattr(self, split, None) or getattr(self, kind_of(split))


@record
class Limits:
    """Limits of a reward model's certificate; null: not required. Accuracies are compared by the lower end of
    their 95 % interval, ties count half.
    """

    # lower end of the held-out accuracy, never below chance; null: not required
    min_accuracy: Share | None = 0.5
    min_accuracy_by_kind: (
        Mapping[Literal["contrast", "echo", "form", "off_topic", "pass_fail", "sampled"], Share] | None
    ) = None  # lower end of the accuracy on the pairs of a kind
    best_of_n_rises: Bool | None = None  # true: the true rate must rise with n, by its lower end
    min_pairs: Natural | None = 1  # held-out pairs
    max_ties: Share | None = 0.05  # share of pairs with equal scores
    max_calibration_error: Share | None = None  # expected calibration error
    max_length_correlation: Share | None = None  # of score and length
    reload_tolerance: NotNegative | None = 1e-4  # score in memory against score after reloading
    batch_tolerance: NotNegative | None = 1e-3  # score alone against score in a packed batch
    padding_tolerance: NotNegative | None = 1e-3  # score alone against padded, by transformers


@record
class Watch:
    """What each round measures besides its rewards."""

    # score that health rules compare the reward with: the gold measure, or an annotator such as a
    # verifier
    gold: Bool | Spec = False
    kl_prompts: Natural = 0  # prompts for the KL to the initial policy; 0: not measured


@record
class Gate:
    """Bounds of an evaluation metric, exclusive."""

    over: Finite | None = None  # the metric must be above this
    below: Finite | None = None  # the metric must be below this
    interval: Bool = False  # test the end of the 95 % interval, not the mean
