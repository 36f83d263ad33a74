"""Schema of recipes: phases and training. Data, reward limits and gates are in sections.py, evaluation in
schema_evaluation.py, claims in schema_claim.py, profiles in profile.py. The comments become the page
docs/recipe-keys.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any, Literal

from pydantic import Field

from ratchet.components.recipes.conform import record
from ratchet.components.recipes.ranges import (
    BelowOne,
    Bool,
    Count,
    LearningRate,
    Natural,
    NotNegative,
    Positive,
    Seed,
    Share,
)
from ratchet.components.recipes.schema_claim import Claim
from ratchet.components.recipes.schema_evaluation import Evaluate, Register
from ratchet.components.recipes.sections import Data, Limits, Sizes, Spec, Watch
from ratchet.components.recipes.splits import Split

SCHEMA = 1


@record
class Rule:
    """Health rule of online training, by its name in `components/pieces/health`."""

    limit: NotNegative  # value beyond which the rule trips
    action: Literal["warn", "roll_back", "stop"] = "warn"  # roll_back: keep the previous policy this round


@record
class Source:
    """A model: `hub:`, `path:`, `pypi:`, `generate:`, or `registry:NAME` (its champion),
    `registry:NAME@ALIAS`, `registry:NAME/3` for a registered model.
    """

    source: str  # address
    sha256: str | None = None  # of the file; null: not pinned
    base: str | None = None  # base model of a LoRA adapter; null: by adapter_config.json
    base_sha256: str | None = None  # of the base's file
    format: Literal["auto", "huggingface", "gguf", "tiny", "new"] = "auto"  # auto: by the files
    remote_code: Bool = False  # run the repository's own model code, for this model and those trained from it
    shape: Sizes | None = None  # sizes for `plan` before the download; no effect otherwise
    # reward: a reward model, that is a sequence classifier with one label
    role: Literal["reward"] | None = None
    certificate: Limits | None = None  # limits for a reward model that training optimises against


@record
class Fit:
    """One training run: objectives, batch, optimiser, learning-rate schedule, validation, checkpoints."""

    updates: Mapping[str, Sequence[Spec]]  # role (policy, reward_model) -> objectives, whose losses are added
    batch: Count = 16  # groups per optimiser step; with reward.by_prompt prompts
    epochs: Natural = 1  # passes over the data
    max_steps: Count | None = None  # upper bound of optimiser steps, not with `cadence: step`; null: none
    learning_rate: LearningRate = 1e-5  # peak learning rate of AdamW
    schedule: Literal["constant", "linear", "cosine"] = "cosine"  # after the warm-up
    warmup: BelowOne = 0.1  # share of the steps (`cadence: step`: rounds) with a rising learning rate
    weight_decay: NotNegative = 0.0  # of AdamW, on matrices only
    betas: Annotated[Sequence[BelowOne], Field(min_length=2, max_length=2)] = (0.9, 0.999)  # of AdamW
    max_grad_norm: Positive | None = 1.0  # gradient clipping; null: off
    adapter: Spec = field(default_factory=lambda: {"name": "full"})  # which parameters are trained
    validate_every: Natural = 0  # optimiser steps between validations; 0: never
    patience: Natural = 3  # validations without a better loss before early stopping
    # optimiser steps between checkpoints, 0: none; null: five minutes between them
    save_every: Natural | None = None
    # smallest share of sampled answers that end by themselves after training; 0: not checked
    min_ended: Share = 0.05


@record
class Demonstrate:
    """Data sets from the base model's own answers: sampled on two splits, scored, and selected into SFT data
    and preference pairs. The sections `sft` and `reward` then read these instead of the curated splits of the
    same names.
    """

    rollout: Spec  # how the base model answers
    annotate: Sequence[Spec]  # rewards of the answers
    data: Split = "demonstrate"  # split of prompts
    validation: Split = "demonstrate_validation"  # split of held-out prompts
    sft: Sequence[Spec] = ()  # selectors that make SFT data
    reward: Sequence[Spec] = ()  # selectors that make preference pairs
    max_failed: Share = 0.1  # share of failed rewards that stops the run
    seed: Seed | None = None  # null: the recipe's; a number shares the product between seeds


@record
class Preferences:
    """Preference pairs from the SFT policy's own answers, sampled, scored and selected as in `Demonstrate`.
    The section `reward` trains on them, together with the pairs of `demonstrate.reward`; its certificate is
    measured on held-out ones of these only.
    """

    rollout: Spec  # how the SFT policy answers
    annotate: Sequence[Spec]  # rewards of the answers
    select: Sequence[Spec]  # selectors that make preference pairs
    data: Split = "preferences"  # split of prompts
    validation: Split = "preferences_validation"  # split of held-out prompts
    max_failed: Share = 0.1  # share of failed rewards that stops the run
    seed: Seed | None = None  # null: the recipe's; a number shares the product between seeds


@record
class Learn:
    """A phase that trains a policy on groups on disk: a split, or what an earlier phase made."""

    fit: Fit  # training
    data: str  # a split, or an earlier phase that makes groups
    validation: str | None = None  # split or phase for the validation loss; null: none
    # prompt and answer together; a longer one is cut after its last turn that fits, dropped if none does
    max_tokens: Count = 256
    max_dropped: Share | None = 0.25  # share of records that may be dropped as too long; null: any
    limit: Count | None = None  # largest number of records
    limit_validation: Count | None = None  # largest number of validation records
    annotate: Sequence[Spec] = ()  # rewards and other columns
    select: Sequence[Spec] = ()  # selectors
    prepare: Sequence[Spec] = ()  # columns that the objectives read, such as reference log-probs
    max_failed: Share = 0.1  # share of failed rewards that stops the run
    of: str = ""  # model of the recipe or earlier phase to start from; empty: the policy so far
    seed: Seed | None = None  # null: the recipe's; a number shares the product between seeds
    advance: Bool = True  # whether the policy so far is now this one
    does: Literal["learn"] = "learn"  # kind of phase


@record
class Sft(Learn):
    """Supervised fine-tuning: the short spelling of a phase of that name."""

    data: str = "sft"  # split to train on
    validation: str | None = "sft_validation"  # split for the validation loss; null: none


@record
class Reward:
    """Reward models, `members` of them, which differ by seed. With `linear_probe` the head starts at the
    Bradley-Terry optimum over the frozen backbone (arXiv 2202.10054) and `fit` continues from there;
    `fit.epochs: 0` stops at that. `by_prompt` is InstructGPT's batching (section 3.5).
    """

    fit: Fit  # training
    data: str = "reward"  # split of pairs to train on, or earlier phase that makes pairs
    also: str = ""  # a second one, such as an earlier batch of labels; empty: none
    validation: str = "reward_validation"  # split or phase of held-out pairs, for the certificate
    layers: Count | None = None  # keep the first layers of the backbone; null: all
    pool: Literal["last", "mean"] = "last"  # what the head reads: the last token, or the mean over the answer
    linear_probe: Bool = False  # start the head at the Bradley-Terry optimum over the frozen backbone
    by_prompt: Bool = False  # train on all pairs of a prompt together
    members: Count = 1  # size of an ensemble
    # prompt and answer together; a longer one is cut after its last turn that fits, dropped if none does
    max_tokens: Count = 256
    max_dropped: Share | None = 0.25  # share of pairs that may be dropped as too long; null: any
    limit: Count | None = None  # largest number of pairs
    limit_validation: Count | None = None  # largest number of held-out pairs
    certificate: Limits = field(default_factory=Limits)  # limits that the reward model must meet
    of: str = ""  # model of the recipe or earlier phase to start from; empty: the policy so far
    seed: Seed | None = None  # null: the recipe's; a number shares the product between seeds
    does: Literal["reward"] = "reward"  # kind of phase

    def models(self, name: str = "reward_model") -> list[str]:
        """Names of the members in pieces: `name`, or `name_1`, `name_2`... when there are several."""
        return [name] if self.members == 1 else [f"{name}_{i + 1}" for i in range(self.members)]

    @property
    def reward_models(self) -> list[str]:
        """Names of the members of the section `reward`."""
        return self.models()


@record
class Offline(Learn):
    """Learning from groups on disk, such as preference pairs: the short spelling of a phase of that name."""

    data: str = "pairs"  # split to train on


@record
class Role:
    """A further model that an online phase trains, such as a critic. Pieces use it by the
    role's name. It learns before the policy in each step, from its own choice of the scored groups.
    """

    fit: Fit  # training in a step; `updates` has one key, the role's name
    of: str = ""  # model of the recipe or earlier phase to start from; empty: as the policy
    value_head: Bool = False  # train a value head
    select: Sequence[Spec] = ()  # selectors
    prepare: Sequence[Spec] = ()  # columns that the objectives read
    fresh: Sequence[
        Spec
    ] = ()  # columns computed before each optimiser step, under the weights of that moment
    target: Spec | None = None  # reference update of `NAME_target`, which follows after each optimiser step
    start: Count = 1  # first step in which it learns


@record
class Online:
    """Learning from the policy's own answers, in rounds (four stages each) or in on-policy steps (one
    stage, in memory).
    """

    fit: Fit  # training of a round or step
    cadence: Literal["round", "step"] = "round"  # step: on-policy steps in memory, one stage
    rounds: Count = 3  # number of rounds or steps
    data: str = "prompts"  # split of prompts, or earlier phase whose prompts are answered again
    prompts: Spec = field(default_factory=lambda: {"name": "disjoint"})  # which prompts come next
    prompts_per_round: Count = 64  # prompts per round or step
    rollout: Spec = field(default_factory=lambda: {"name": "sample"})  # how the policy answers
    annotate: Sequence[Spec] = ()  # rewards, advantages and other columns
    select: Sequence[Spec] = ()  # selectors
    prepare: Sequence[Spec] = ()  # columns that the objectives read, such as reference log-probs
    # before round 1, before this round, or a reference update
    reference: Literal["initial", "previous"] | Mapping[str, Any] = "initial"
    sample_from: Literal["current", "initial"] = "current"  # initial: the offline control
    keep_earlier: Bool = False  # train on earlier rounds' groups too
    fresh: Sequence[
        Spec
    ] = ()  # columns computed before each optimiser step, under the weights of that moment
    start: Count = 1  # first step in which the policy learns, after the further roles
    roles: Mapping[str, Role] = field(default_factory=dict)  # further models to train
    value_head: Bool = False  # train a value head on the policy, for advantages with a learned baseline
    max_failed: Share = 0.1  # share of failed rewards that stops the run
    watch: Watch = field(default_factory=Watch)  # what each round measures besides rewards
    health: Mapping[str, Rule] = field(default_factory=dict)  # health rules by name
    by_round: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # round -> keys of that round
    of: str = ""  # model of the recipe or earlier phase to start from; empty: the policy so far
    seed: Seed | None = None  # null: the recipe's; a number shares the product between seeds
    advance: Bool = True  # whether the policy so far is now this one
    does: Literal["online"] = "online"  # kind of phase


@record
class Groups:
    """A phase that makes a data set for later phases: groups sampled, or read from a split or an earlier
    phase, then scored and selected.
    """

    data: str  # split of prompts (without `rollout`: of groups), or earlier phase that makes groups
    validation: str | None = None  # the same for a held-out data set, called `NAME_validation`; null: none
    rollout: Spec | None = None  # how the model answers; null: the groups of `data` as they are
    annotate: Sequence[Spec] = ()  # rewards and other columns
    select: Sequence[Spec] = ()  # selectors
    max_failed: Share = 0.1  # share of failed rewards that stops the run
    of: str = ""  # model of the recipe or earlier phase that answers; empty: the policy so far
    seed: Seed | None = None  # null: the recipe's; a number shares the product between seeds
    does: Literal["groups"] = "groups"  # kind of phase


AnyPhase = Annotated[Learn | Reward | Online | Groups, Field(discriminator="does")]


@record
class Recipe:
    """A recipe."""

    schema: Literal[1]  # version of this format
    name: str  # default: the file's name
    about: str  # one sentence
    models: Mapping[str, Source]  # `policy` and further models
    data: Data  # curation and splits
    base: str | None = None  # recipe or base to merge over
    paper: str = ""  # arXiv identifier
    profile: str = "cpu"  # hardware profile
    seed: Seed = 0  # of sampling and training
    claim: Claim | None = None  # what `ratchet claims` tests
    demonstrate: Demonstrate | None = None  # data sets from the base model's answers
    sft: Sft | None = None  # supervised fine-tuning
    preferences: Preferences | None = None  # pairs from the SFT policy's answers
    reward: Reward | None = None  # reward model
    offline: Offline | None = None  # learning from groups on disk
    online: Online | None = None  # learning from the policy's own answers
    phases: Mapping[str, AnyPhase] | None = None  # further phases by name, in order, after the sections
    cycle: Sequence[str] = ()  # neighbouring phases that are repeated in order
    cycles: Count = 1  # how often
    evaluate: Evaluate | None = None  # evaluation
    register: Register | None = None  # registry and gates
