"""Sections of a recipe: evaluation and registration."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field

from ratchet.components.recipes.conform import record
from ratchet.components.recipes.ranges import (
    Bool,
    Count,
    Finite,
    Natural,
    OpenShare,
    Seed,
    Temperature,
)
from ratchet.components.recipes.sections import Gate, Spec
from ratchet.components.recipes.splits import Split


@record
class BestOf:
    """Best-of-n decoding: the final policy answers with the best of `n` samples by the last reward that the
    annotators write.
    """

    annotate: Sequence[Spec]  # rewards
    n: Count = 4  # samples per prompt


@record
class Arm:
    """An arm of the evaluation: a model that answers held-out prompts."""

    # `base`, `initial` or `policy` (final), a model of the recipe, or a phase; several with weights, which
    # add up to 1: the weighted mean of their parameters
    model: str | Mapping[str, Finite] = "policy"
    rollout: Spec | None = None  # how it answers; null: `sample`; options not set are those of `evaluate`
    data: Split | None = None  # split of held-out prompts; null: that of `evaluate`
    best_of: BestOf | None = None  # best-of-n decoding
    seed: Seed | None = None  # of its answers; null: that of `evaluate`


@record
class Evaluate:
    """Evaluation on held-out prompts. `metrics` are rewards, each compared by win rate and by mean;
    `measures` describe the quality of the answers, each compared with the base model and with SFT;
    `reports` are numbers over several arms.
    """

    arms: Mapping[str, Arm] | None = None  # null: base model, SFT policy and final policy
    # how the arms answer; null: as the last online phase if in an environment (once a prompt), else `sample`
    rollout: Spec | None = None
    seed: Seed | None = None  # of the answers; null: the recipe's; a number shares them between seeds
    data: Split = "evaluate"  # split of held-out prompts
    prompts: Count = 64  # largest number of prompts
    responses_per_prompt: Count = 1  # answers per prompt, averaged first
    max_tokens: Count = 48  # per answer
    temperature: Temperature = 1.0  # 0: greedy
    metrics: Sequence[Spec] = ()  # rewards
    measures: Sequence[Spec] = ()  # quality measures
    reports: Sequence[Spec] = ()  # numbers that compare arms
    by: Sequence[str] = ()  # keys of a prompt's `meta` to break the first metric down by
    best_of: BestOf | None = None  # best-of-n decoding
    gold: Bool = False  # train and use the gold measure on sentence embeddings
    perplexity_rows: Natural = 64  # held-out conversations for perplexity; 0: none
    transcripts: Natural = 12  # answers shown in the report


@record
class Champion:
    """How a challenger is compared with the champion on the same held-out prompts: by `score` (gold,
    reward.reward_model, ...), at `alpha`, the chance that the champion is ever replaced by a model that is no
    better, over any number of challengers.
    """

    score: str | None = None  # null: gold, else the first shared score that training did not raise
    alpha: OpenShare = 0.05  # error rate over all challengers


@record
class Register:
    """Model registry: name, gates, promotion."""

    model: str = ""  # name in the registry; empty: the recipe's
    champion: Champion = field(default_factory=Champion)  # how a challenger is compared
    gates: Mapping[str, Gate] = field(default_factory=dict)  # metric -> bound
