"""Peak memory of a stage in bytes, by part. Arithmetic only; nothing is loaded.

Per parameter (ZeRO, arXiv 1910.02054, section 3): float32 training takes 4 bytes of weight, 4 of gradient and
8 of Adam moments for trained parameters; mixed precision 2, 2 and 12 (a float32 copy and the moments). ZeRO
shards Adam's state from stage 1, gradients from 2, weights from 3. Activations are counted per tensor that
autograd saves in a Llama-like layer. Log-probs are chunked, so full logits never exist.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ratchet.components.estimates.shape import Shape
from ratchet.components.recipes.profile import Profile

Parts = Mapping[str, float]
CHUNK, CHUNK_BYTES = 256, 2**28  # positions of logits at a time on CPU, their bytes on a GPU (logprobs.py)
BLOCK = 16  # tokens in a block of vLLM's KV cache
PREFILL = 8192  # tokens that vLLM prefills at once
PROCESS = 0.5e9  # python, torch and transformers before a model is loaded
ENGINE = 0.06e9  # an engine process besides its model: it is forked, and shares the rest
TOKENIZER = 2500  # bytes per token of the vocabulary that an engine process takes to read its tokenizer
HEAP = 2
"""Memory that scoring takes on CPU over what it uses at once. glibc keeps freed blocks for the process
(`ENVIRONMENT` of tasks/process/launch.py), and the tensors of the next micro-batch, which has another number
of tokens, do not fit into their holes.
"""
STATE = ("weights", "gradients", "optimiser", "output layer")
"""Parts of the memory of training that a model takes throughout the stage."""
RESERVE = 0.1  # share of a device: fragmentation, CUDA context, workspaces


@dataclass(frozen=True)
class Layout:
    """The options of a profile that determine memory."""

    weight: int = 4  # bytes of a weight, gradient or activation
    optimiser: int = 8  # bytes of Adam state per trained parameter
    ranks: int = 1
    zero_stage: int = 0
    offload_optimiser: bool = False
    offload_parameters: bool = False
    checkpointing: bool = False
    loaded: int = 0  # bytes per parameter that each rank loads into host memory before ZeRO shards

    @classmethod
    def of(cls, profile: Profile) -> Layout:
        """Layout of the learner: float32 on one device for `torch`, else as the profile says."""
        if profile.learner == "torch":
            return cls(checkpointing=profile.gradient_checkpointing)
        half = profile.precision == "bfloat16"
        return cls(
            weight=2 if half else 4,
            optimiser=12 if half else 8,
            ranks=profile.ranks,
            zero_stage=profile.zero_stage,
            offload_optimiser=profile.offload_optimizer,
            offload_parameters=profile.offload_parameters,
            checkpointing=profile.gradient_checkpointing,
            loaded=4,
        )

    def share(self, from_stage: int) -> float:
        """Fraction that one rank holds of state that ZeRO shards from `from_stage`."""
        return 1.0 / self.ranks if self.zero_stage >= from_stage else 1.0


def trained(shape: Shape, adapter: Mapping[str, Any]) -> tuple[int, int]:
    """Number of trained parameters, and of layers above the lowest trained one (they save activations)."""
    linear = (
        2 * (shape.hidden + shape.query)
        + 2 * (shape.hidden + shape.key_value)
        + 3 * (shape.hidden + shape.intermediate)
    )
    if adapter["name"] == "lora":
        return shape.layers * adapter.get("rank", 16) * linear, shape.layers
    if adapter["name"] == "top_layers":
        layers = min(adapter.get("count", 1), shape.layers)
        head = 0 if shape.tied else shape.vocabulary * shape.hidden
        return layers * shape.layer + shape.hidden + head, layers
    if adapter["name"] == "half":  # of the matrices and norms of every layer, and all outside the layers
        return shape.parameters - shape.layers * shape.layer // 2, shape.layers
    if adapter["name"] == "steer":  # after the last layer
        return 2 * adapter.get("rank", 8) * shape.hidden, 0
    return shape.parameters, shape.layers


def trains_output_layer(shape: Shape, adapter: Mapping[str, Any]) -> bool:
    """Whether the output layer is trained; `top_layers` freezes the embeddings that it may be tied to."""
    return adapter["name"] not in ("lora", "steer", *(["top_layers"] if shape.tied else []))


def kept_activations(
    shape: Shape, tokens: float, layers: int, *, bytes_each: int, checkpointing: bool
) -> float:
    """Activation memory of `tokens` for a backward through `layers`. Per token a layer saves: for each of two
    norms its input and normalised input in float32 and its output; query, repeated key and value, attention
    output twice; four tensors of the MLP. With gradient checkpointing each layer saves its input and one
    layer at a time is recomputed.
    """
    a_layer = 16 * shape.hidden + bytes_each * (2 * shape.hidden + 5 * shape.query + 4 * shape.intermediate)
    return tokens * (
        layers * bytes_each * shape.hidden + a_layer if checkpointing and layers else layers * a_layer
    )


def layer_activations(shape: Shape, tokens: float, bytes_each: int) -> float:
    """Activations of one layer in a pass without gradients."""
    return tokens * bytes_each * (3 * shape.hidden + 3 * shape.query + 3 * shape.intermediate)


def forward_activations(shape: Shape, tokens: float, bytes_each: int) -> float:
    """Activations of one layer in a pass without gradients, and the logits of one chunk."""
    return layer_activations(shape, tokens, bytes_each) + logits(shape, chunk(shape, tokens, bytes_each))


def chunk(shape: Shape, tokens: float, bytes_each: int) -> float:
    """Positions whose logits exist at a time; weights of two bytes are those of a GPU."""
    return min(tokens, max(CHUNK, CHUNK_BYTES // (4 * shape.vocabulary)) if bytes_each < 4 else CHUNK)


def logits(shape: Shape, positions: float) -> float:
    """Bytes of float32 logits, their probabilities and one more tensor of that size."""
    return 12 * positions * shape.vocabulary


def training(shape: Shape, adapter: Mapping[str, Any], layout: Layout, tokens: float) -> tuple[Parts, float]:
    """(bytes by part on one device, bytes on the host) of training with `tokens` per micro-batch."""
    learns, layers = trained(shape, adapter)
    weights = layout.weight * shape.parameters * layout.share(3)
    optimiser = layout.optimiser * learns * layout.share(1)
    host = float(layout.loaded * layout.ranks * shape.parameters)
    if layout.offload_parameters:
        host = max(host, weights * layout.ranks)
        weights = layout.weight * (
            2 * shape.layer + shape.vocabulary * shape.hidden
        )  # two layers at a time, and the embeddings
    elif layout.zero_stage >= 3:
        weights += layout.weight * (
            shape.layer + shape.vocabulary * shape.hidden
        )  # gathered one layer at a time
    if layout.offload_optimiser:
        host += optimiser * layout.ranks
        optimiser = 0.0
    return {
        "weights": weights,
        "gradients": layout.weight * learns * layout.share(2),
        "optimiser": optimiser,
        "activations": kept_activations(
            shape, tokens, layers, bytes_each=layout.weight, checkpointing=layout.checkpointing
        )
        + logits(shape, chunk(shape, tokens, layout.weight)),
        "output layer": _float_head(shape, layout.weight) * (2 if trains_output_layer(shape, adapter) else 1),
    }, host


def cache(shape: Shape, *, prompt: float, answer: float, rows: float, each: int, bytes_each: int) -> float:
    """KV cache bytes for `rows` answers, `each` per prompt; a prompt is cached once."""
    slots = min(rows, 2 * -(-rows // max(each, 1))) if rows > each else 1
    return 2 * shape.layers * shape.key_value * bytes_each * (slots * prompt + rows * answer)


def vllm_cache(shape: Shape, profile: Profile, *, length: float, rows: float) -> float:
    """Bytes of vLLM's KV cache on each of its GPUs: `cache_gb`, or where that is null the keys and values of
    `rows` sequences of `length` tokens, in whole blocks. vLLM does not start with less than one sequence of
    `max_model_len` tokens.
    """
    options = profile.vllm
    if options.cache_gb is not None:
        return options.cache_gb * 2**30
    token = 2 * shape.layers * shape.key_value * sampling_bytes(profile) / options.tensor_parallel
    blocks = max(rows * math.ceil(length / BLOCK), math.ceil(options.max_model_len / BLOCK))
    return token * BLOCK * blocks


def bounded(memory: Parts, shape: Shape, profile: Profile) -> Parts:
    """`memory` of a stage with vLLM's KV cache reduced to what the other parts leave of the device, where
    `cache_gb` is null and the profile states `memory_gb`; never below one sequence of `max_model_len` tokens.
    With fewer blocks than sequences need, vLLM lets some of them wait.
    """
    stated, options = profile.hardware.memory_gb, profile.vllm
    if profile.engine != "vllm" or options.cache_gb is not None or not stated or "KV cache" not in memory:
        return memory
    others = sum(memory.values()) - memory["KV cache"]
    least = vllm_cache(shape, profile, length=options.max_model_len, rows=1)
    left = stated * 1e9 * (1 - RESERVE) - others
    return {**memory, "KV cache": max(least, min(memory["KV cache"], left))}


def inference_bytes(profile: Profile) -> int:
    """Bytes per weight in the torch engine: the profile's precision on a GPU, float32 on CPU."""
    return 2 if profile.precision == "bfloat16" and profile.hardware.memory_gb is not None else 4


def sampling_bytes(profile: Profile) -> int:
    """Bytes per weight in the engine that samples."""
    if profile.engine == "vllm":
        return 2 if profile.vllm.dtype != "float32" else 4
    return inference_bytes(profile)


def engine_copies(shape: Shape, profile: Profile) -> float:
    """Bytes of the copies of the weights that an engine on CPU keeps while it generates: the layers in the
    layout of oneDNN, in mixed precision in bfloat16 and with the output layer (models/products.py). 0 on a
    GPU.
    """
    if profile.hardware.memory_gb is not None or profile.engine == "vllm":
        return 0.0
    layers = float(shape.layers * shape.layer)
    return 2 * (layers + shape.vocabulary * shape.hidden) if profile.precision == "bfloat16" else 4 * layers


def sampling(
    shape: Shape, profile: Profile, *, prompt: float, longest: float, answer: float, rows: float, each: int
) -> Parts:
    """Bytes by part of one engine during generation. The torch engine prefills the prompts of `rows` answers,
    of `prompt` tokens in the mean, at once and keeps all keys and values; on a GPU every prompt has the place
    of the `longest`, on CPU the system gives memory for the tokens that there are. Logits are those of the
    next token of every row. vLLM prefills in chunks and keeps `vllm_cache` bytes; the torch engine then
    scores on the same device.
    """
    if profile.engine == "vllm":
        half, spread = sampling_bytes(profile), profile.vllm.tensor_parallel
        return {
            "weights": half * shape.parameters / spread,
            "KV cache": vllm_cache(shape, profile, length=longest + answer, rows=rows),
            "activations": forward_activations(shape, PREFILL, half) / spread,
            "scorer": sum(scoring(shape, profile, profile.tokens_per_microbatch).values()),
        }
    own = inference_bytes(profile)
    place = prompt if profile.hardware.memory_gb is None else longest
    return {
        "weights": float(own * shape.parameters),
        "output layer": _float_head(shape, own),
        "KV cache": cache(shape, prompt=place, answer=answer, rows=rows, each=each, bytes_each=own),
        "packed weights": engine_copies(shape, profile),
        "activations": layer_activations(shape, prompt * -(-rows // max(each, 1)), own) + logits(shape, rows),
    }


def scoring(shape: Shape, profile: Profile, tokens: float, *, reward: bool = False) -> Parts:
    """Bytes by part while the torch engine computes log-probs of given texts with one model, or rewards,
    which need no logits.
    """
    own = inference_bytes(profile)
    mixed = own == 4 and profile.precision == "bfloat16"  # converts the output layer in each product
    rounded = 2.0 * shape.vocabulary * shape.hidden if mixed else 0.0
    logprobs = forward_activations(shape, tokens, own) + rounded
    used = layer_activations(shape, tokens, own) if reward else logprobs
    return {
        "weights": float(own * shape.parameters),
        "output layer": _float_head(shape, own),
        "activations": used * (HEAP if profile.hardware.memory_gb is None else 1),
    }


def _float_head(shape: Shape, own: int) -> float:
    """The float32 copy of the output layer (for the softmax) if weights are in half precision; it has a
    gradient too if the layer is trained.
    """
    return 4.0 * shape.vocabulary * shape.hidden if own < 4 else 0.0
