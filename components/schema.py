"""What a recipe may say: its sections, their keys and defaults. `components/recipe.py` reads YAML into these."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any, Literal

from pydantic import Field

from ratchet.components.conform import record
from ratchet.components.errors import RecipeError
from ratchet.components.ranges import (
    BelowOne,
    Bool,
    Count,
    Natural,
    NotNegative,
    OpenShare,
    Positive,
    Share,
    Temperature,
)
from ratchet.components.sections import Data, Gate, Limits, Sizes, Spec, Split, Watch

SCHEMA = 1


@record
class Rule:
    """Of a round's health, by its name in `components/evaluation/health.py`."""

    limit: NotNegative
    action: Literal["warn", "hold", "stop"] = "warn"


@record
class Claim:
    """What the method promises, for whoever compares the two over seeds (`ratchet compare`)."""

    against: str
    metric: str
    direction: Literal["higher", "lower"] = "higher"
    at_least: NotNegative = 0.0
    seeds: Count = 3


@record
class Source:
    """Where bytes come from: `pypi:`, `hub:`, `path:`, `generate:`, or `registry:` for a registered model (`registry:NAME`, its champion;
    `registry:NAME@ALIAS`; `registry:NAME/3`), pinned by hash where there is one file."""

    source: str
    sha256: str | None = None
    base: str | None = None  # address of the model that a LoRA directory is merged into; by default the one that its adapter_config.json names
    base_sha256: str | None = None
    format: Literal["auto", "huggingface", "gguf", "tiny"] = "auto"
    remote_code: Bool = False  # run the code that lies beside the weights, of this model and of those trained from it
    shape: Sizes | None = None  # for `plan` before it is fetched; changes nothing
    role: Literal["reward"] | None = None  # a reward model: a sequence classifier with one label, or a reward model of an earlier run
    certificate: Limits | None = None  # of a reward model that training optimises against


@record
class Fit:
    """How one optimisation runs. `batch` counts units of the objective (rows, pairs or groups) in one step. When fewer sampled
    answers than the share `min_ended` end by themselves afterwards, the run stops; 0 lets them."""

    updates: Mapping[str, Sequence[Spec]]
    batch: Count = 16
    epochs: Natural = 1
    max_steps: Count | None = None
    learning_rate: Positive = 1e-5
    schedule: Literal["constant", "linear", "cosine"] = "cosine"
    warmup: BelowOne = 0.1
    weight_decay: NotNegative = 0.0
    betas: Annotated[Sequence[BelowOne], Field(min_length=2, max_length=2)] = (0.9, 0.999)
    max_grad_norm: Positive | None = 1.0
    adapter: Spec = field(default_factory=lambda: {"name": "full"})
    validate_every: Natural = 0
    patience: Natural = 3
    save_every: Natural = 10
    min_ended: Share = 0.05


@record
class Demonstrate:
    """Data sets made from the base model's own answers: `rollout` samples them on the splits `data` and `validation`, `annotate`
    scores them, the selectors of `sft` make demonstrations and those of `reward` preference pairs. The sections `sft` and `reward`
    of the recipe then read these in place of the curated splits of the same names."""

    rollout: Spec
    annotate: Sequence[Spec]
    data: Split = "demonstrate"
    validation: Split = "demonstrate_validation"
    sft: Sequence[Spec] = ()
    reward: Sequence[Spec] = ()
    max_failed: Share = 0.1


@record
class Preferences:
    """A data set of pairs made from the SFT policy's own answers, which is what the reward model will judge: sampled, scored and
    selected as in `Demonstrate`. The section `reward` then learns from it, and from the pairs of `demonstrate.reward` where there are
    any, in place of the curated splits; held out for its certificate are these alone."""

    rollout: Spec
    annotate: Sequence[Spec]
    select: Sequence[Spec]
    data: Split = "preferences"
    validation: Split = "preferences_validation"
    max_failed: Share = 0.1


@record
class Sft:
    fit: Fit
    data: Split = "sft"
    validation: Split | None = "sft_validation"
    max_tokens: Count = 256
    max_dropped: Share | None = 0.25  # of the records, too long; null: any
    limit: Count | None = None
    limit_validation: Count | None = None


@record
class Reward:
    """Reward models, `members` of them, alike but for their seed. `layers` keeps the first ones of the backbone; the head
    reads the `last` token or the `mean` of the judged ones. With `linear_probe` it starts at the Bradley-Terry optimum
    over the frozen backbone (arXiv 2202.10054); `fit` goes on from there, and `fit.epochs: 0` leaves it at that. `by_prompt`: the
    pairs of one prompt are learnt from together, so that `fit.batch` counts prompts (InstructGPT, section 3.5)."""

    fit: Fit
    data: Split = "reward"
    validation: Split = "reward_validation"
    layers: Count | None = None
    pool: Literal["last", "mean"] = "last"
    linear_probe: Bool = False
    by_prompt: Bool = False
    members: Count = 1
    max_tokens: Count = 256
    max_dropped: Share | None = 0.25  # of the records, too long; null: any
    limit: Count | None = None
    limit_validation: Count | None = None
    certificate: Limits = field(default_factory=Limits)

    @property
    def judges(self) -> list[str]:
        """What pieces call the members: `judge`, or `judge_1`, `judge_2`... when there are several."""
        return ["judge"] if self.members == 1 else [f"judge_{i + 1}" for i in range(self.members)]


@record
class Offline:
    """Learning from groups on disk: offline DPO and its relatives."""

    fit: Fit
    data: Split = "pairs"
    max_tokens: Count = 256
    max_dropped: Share | None = 0.25
    limit: Count | None = None
    annotate: Sequence[Spec] = ()
    select: Sequence[Spec] = ()
    prepare: Sequence[Spec] = ()
    max_failed: Share = 0.1


@record
class Online:
    """Learning from the policy's own answers, by rounds (four tasks each) or by steps (one task, in memory). In place of a word,
    `reference` takes a piece of the anchors by steps: what the reference becomes after each."""

    fit: Fit
    cadence: Literal["round", "step"] = "round"
    rounds: Count = 3
    data: Split = "prompts"
    prompts: Spec = field(default_factory=lambda: {"name": "disjoint"})
    prompts_per_round: Count = 64
    rollout: Spec = field(default_factory=lambda: {"name": "sample"})
    annotate: Sequence[Spec] = ()
    select: Sequence[Spec] = ()
    prepare: Sequence[Spec] = ()
    reference: Literal["initial", "previous"] | Mapping[str, Any] = "initial"
    sample_from: Literal["current", "initial"] = "current"
    keep_earlier: Bool = False
    value_head: Bool = False
    max_failed: Share = 0.1
    watch: Watch = field(default_factory=Watch)
    health: Mapping[str, Rule] = field(default_factory=dict)
    by_round: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@record
class BestOf:
    """The final policy answers with the best of `n` samples by the last reward that the annotators write."""

    annotate: Sequence[Spec]
    n: Count = 4


@record
class Evaluate:
    """What is measured on held-out prompts. `metrics` are rewards, each compared by win rate and by mean; `measures` describe the
    quality of the answers, each compared with the base model and with SFT; `by` names numbers or words in a prompt's `meta`
    (`instruction.family`), by whose values the first metric is told apart."""

    data: Split = "evaluate"
    prompts: Count = 64
    responses_per_prompt: Count = 1
    max_tokens: Count = 48
    temperature: Temperature = 1.0
    metrics: Sequence[Spec] = ()
    measures: Sequence[Spec] = ()
    by: Sequence[str] = ()
    best_of: BestOf | None = None
    gold: Bool = False
    perplexity_rows: Natural = 64
    transcripts: Natural = 12


@record
class Champion:
    """How a challenger is compared with the champion on the same held-out prompts: by `score` (gold, reward.judge, ...; null: the
    gold judge's if both have it, else the first reward they share), at `alpha`, the chance that the champion may ever give way to
    a model that is no better, however many challengers it meets."""

    score: str | None = None
    alpha: OpenShare = 0.05


@record
class Register:
    """`model` is the name in the registry; the recipe's own unless it says another."""

    model: str = ""
    champion: Champion = field(default_factory=Champion)
    gates: Mapping[str, Gate] = field(default_factory=dict)


@record
class Vllm:
    """Where vLLM runs and with what. In the stage's own process by default; in one of its own that Ratchet starts from the
    environment of `python`; or at `server`, somebody's `vllm serve` that sees the run's directory. `cache_gb` is its key-value
    cache (null: vLLM's own choice, nearly all of a GPU), `eager` leaves graphs and compilation out, `importance_cap` bounds the
    weights of the off-policy correction (null: none; see components/correction.py). `untie` writes out an output layer that is shared
    with the input embedding, which vLLM would not refresh (see components/engines/vllm.py), under `scratch` (null: the machine's
    temporary folder), where a `server` must see it."""

    server: str | None = None
    python: str | None = None
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"
    max_model_len: Count = 2048
    cache_gb: Positive | None = None
    tensor_parallel: Count = 1
    eager: Bool = False
    wait_seconds: Positive = 600.0
    importance_cap: Positive | None = 2.0
    untie: Bool = True
    scratch: str | None = None


@record
class Hardware:
    """What a profile stands on and what it costs. `plan` and the run's summary read it, no stage does: it changes no key."""

    device: str = "this machine"
    devices: Count = 1
    memory_gb: Positive | None = None       # of one device; null: what this machine has
    host_memory_gb: Positive | None = None  # beside the devices; null: what this machine has
    tflops: Positive | None = None          # of one device on matrices, as its maker states; null: measured here
    bandwidth_gb: Positive | None = None    # GB/s between one device and its memory, as its maker states; null: measured here
    price_per_hour: NotNegative | None = None  # of all devices together
    currency: str = "EUR"
    watts: Positive | None = None           # of all devices together, at work


@record
class Profile:
    """Hardware and sizes; never the method. `ranks` processes learn together (one a GPU where there are any), as many on each of
    `machines` (`ratchet join`), each with `threads`; `zero_stage` and the offload switches say what DeepSpeed divides among them or
    keeps on the host."""

    name: str = "cpu"
    learner: Literal["torch", "deepspeed"] = "torch"
    ranks: Count = 1
    machines: Count = 1
    zero_stage: Literal[0, 1, 2, 3] = 2
    offload_optimizer: Bool = False
    offload_parameters: Bool = False
    precision: Literal["float32", "bfloat16"] = "float32"
    engine: Literal["torch", "vllm"] = "torch"
    threads: Count | None = 2
    tokens_per_batch: Count = 2048
    sampler_rows: Count = 64
    gradient_checkpointing: Bool = False
    launch: Literal["child", "inline"] = "child"
    vllm: Vllm = field(default_factory=Vllm)
    hardware: Hardware = field(default_factory=Hardware)

    def __post_init__(self) -> None:
        torch, zero = self.learner == "torch", self.zero_stage
        wrong = {
            f"ranks: {self.ranks} with `learner: torch`, which is one process; take `learner: deepspeed`": torch and self.ranks > 1,
            f"ranks: {self.ranks} on `machines: {self.machines}`; each starts as many ranks: take a multiple of {self.machines}":
                self.ranks % self.machines > 0,
            "precision: bfloat16 with `learner: torch`, which learns in float32; take `learner: deepspeed`": torch and self.precision != "float32",
            f"precision: bfloat16 with `zero_stage: {zero}`, which keeps no float32 weights and gradients beside; take 2 or 3":
                not torch and zero < 2 and self.precision != "float32",
            "an offload with `learner: torch`, which has no such thing; take `learner: deepspeed`":
                torch and (self.offload_optimizer or self.offload_parameters),
            f"offload_optimizer with `zero_stage: {zero}`; DeepSpeed offloads what it divides: take 1, 2 or 3": self.offload_optimizer and not zero,
            f"offload_parameters with `zero_stage: {zero}`; only stage 3 divides the weights": self.offload_parameters and zero < 3,
        }
        for why, holds in wrong.items():
            if holds:
                raise RecipeError(f"profile {self.name}: {why}")


@record
class Recipe:
    schema: Literal[1]
    name: str
    about: str
    models: Mapping[str, Source]
    data: Data
    base: str | None = None
    paper: str = ""
    profile: str = "cpu"
    seed: Natural = 0
    claim: Claim | None = None
    demonstrate: Demonstrate | None = None
    sft: Sft | None = None
    preferences: Preferences | None = None
    reward: Reward | None = None
    offline: Offline | None = None
    online: Online | None = None
    evaluate: Evaluate | None = None
    register: Register | None = None
