"""Hardware profiles: training and inference backends, ranks, batch sizes; never the method."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Literal

from ratchet.components.errors import RecipeError
from ratchet.components.recipes.conform import record
from ratchet.components.recipes.ranges import Bool, Count, NotNegative, Positive


@record
class Vllm:
    """vLLM as the inference engine: in the stage's process, in a child process of the environment of
    `python`, or at `server`, a running `vllm serve` that sees the run's directory. See docs/vllm.md.
    """

    server: str | None = None  # address of a running vLLM server
    python: str | None = None  # interpreter of an environment with vLLM
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16"  # of vLLM's weights
    max_model_len: Count = 2048  # prompt and answer, tokens
    cache_gb: Positive | None = None  # key-value cache, GiB; null: from the sequences of each stage
    tensor_parallel: Count = 1  # GPUs per engine
    eager: Bool = False  # no CUDA graphs, no compilation
    wait_seconds: Positive = 600.0  # for the server to start
    importance_cap: Positive | None = 2.0  # truncation of the importance weights; null: no correction
    untie: Bool = True  # write a tied output layer separately
    scratch: str | None = None  # folder for such copies; null: the system's temporary folder


@record
class Hardware:
    """Description and cost of the hardware, read by estimates and the run's summary only: it changes no store
    key.
    """

    device: str = "this machine"  # name
    devices: Count = 1  # number of GPUs, over all machines
    memory_gb: Positive | None = None  # of one device; null: of this machine
    host_memory_gb: Positive | None = None  # over all machines; null: of this machine
    tflops: Positive | None = None  # of one device by its maker; null: measured here
    bandwidth_gb: Positive | None = None  # GB/s of one device's memory by its maker; null: measured here
    price_per_hour: NotNegative | None = None  # of all devices
    currency: str = "EUR"  # of price_per_hour
    watts: Positive | None = None  # of all devices under load


@record
class Profile:
    """Hardware profile: training and inference backends, ranks, batch sizes; never the method. `ranks`
    processes train together, one per GPU, an equal number on each of `machines`; `engines` processes on each
    of them sample and score together.
    """

    name: str = "cpu"  # the file's name
    learner: Literal["torch", "deepspeed"] = "torch"  # training backend
    ranks: Count = 1  # training processes, over all machines
    machines: Count = 1  # nodes
    engines: Count | None = None  # inference engine processes of a machine, one per device; null: its ranks
    zero_stage: Literal[0, 1, 2, 3] = 2  # DeepSpeed ZeRO
    offload_optimizer: Bool = False  # optimiser state in host memory
    offload_parameters: Bool = False  # parameters in host memory; ZeRO 3
    precision: Literal["float32", "bfloat16"] = "float32"  # bfloat16: mixed precision
    engine: Literal["torch", "vllm"] = "torch"  # inference engine for sampling
    threads: Count | None = 2  # CPU threads of a stage, shared by its engines; null: PyTorch's default
    tokens_per_microbatch: Count = 2048  # packed tokens per forward pass and rank
    max_num_seqs: Count = 64  # sequences decoded together
    gradient_checkpointing: Bool = False  # recompute activations
    # child: one process per stage; inline: in the calling process
    launch: Literal["child", "inline"] = "child"
    vllm: Vllm = field(default_factory=Vllm)  # options of vLLM
    hardware: Hardware = field(default_factory=Hardware)  # for estimates

    def __post_init__(self) -> None:
        torch, zero = self.learner == "torch", self.zero_stage
        wrong = {
            f"ranks: {self.ranks} with `learner: torch`, which is a single process; use `learner: "
            "deepspeed`": torch and self.ranks > 1,
            f"ranks: {self.ranks} on `machines: {self.machines}`; every machine starts the same number of "
            f"ranks: use a multiple of {self.machines}": self.ranks % self.machines > 0,
            f"precision: bfloat16 with `zero_stage: {zero}`, which keeps no float32 weights and "
            "gradients; use 2 or 3": not torch and zero < 2 and self.precision != "float32",
            "offload_* requires `learner: deepspeed`, got `learner: torch`": torch
            and (self.offload_optimizer or self.offload_parameters),
            f"offload_optimizer with `zero_stage: {zero}`; DeepSpeed offloads sharded optimiser state "
            "only: use 1, 2 or 3": self.offload_optimizer and not zero,
            f"offload_parameters with `zero_stage: {zero}`; only stage 3 shards the weights": (
                self.offload_parameters and zero < 3
            ),
        }
        for why, holds in wrong.items():
            if holds:
                raise RecipeError(f"profile {self.name}: {why}")


def engine_processes(profile: Mapping[str, Any]) -> int:
    """Number of inference engine processes of a stage on one machine. A vLLM engine may use several GPUs, a
    server serves all.
    """
    if profile.get("engines"):
        return int(profile["engines"])
    if profile["engine"] == "vllm" and profile["vllm"]["server"]:
        return 1
    return max(1, profile["ranks"] // profile["machines"] // gpus_per_engine(profile))


def gpus_per_engine(profile: Mapping[str, Any]) -> int:
    """GPUs of one engine."""
    return int(profile["vllm"]["tensor_parallel"]) if profile["engine"] == "vllm" else 1
