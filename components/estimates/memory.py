"""How many bytes a stage holds at its peak, part by part: arithmetic only, nothing is loaded.

Per parameter (ZeRO, arXiv 1910.02054, section 3): in float32 4 bytes of weight, 4 of gradient and 8 of Adam's moments for
what is trained; in mixed precision 2, 2 and 12 (a float32 copy and the moments). ZeRO divides Adam's share by the ranks from
stage 1 on, gradients from 2, weights from 3. Activations are counted tensor by tensor as autograd keeps them for a
Llama-like layer; log-probs are made in chunks of positions, so logits are never whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ratchet.components.estimates.shape import Shape
from ratchet.components.recipes.profile import Profile

Parts = Mapping[str, float]
CHUNK = 256          # positions whose logits exist at one time (components/models/logprobs.py)
PREFILL = 8192       # tokens of a prompt that vLLM reads at once
SCORED = 2048        # tokens that the built-in engine scores at once (components/inference/torch.py)
PROCESS = 0.6e9      # python, torch and transformers before a model is loaded
RESERVE = 0.1        # of a device: the allocator's gaps, the CUDA context, kernels' scratch


@dataclass(frozen=True)
class Layout:
    """What of a profile decides bytes."""

    weight: int = 4       # bytes of a weight, a gradient, an activation
    optimiser: int = 8    # bytes of Adam's state a trained parameter
    ranks: int = 1
    zero_stage: int = 0
    offload_optimiser: bool = False
    offload_parameters: bool = False
    checkpointing: bool = False
    loaded: int = 0       # bytes a parameter that each rank reads into host memory before ZeRO divides them

    @classmethod
    def of(cls, profile: Profile) -> Layout:
        """Of the learner: the built-in one is float32 on one device; DeepSpeed's takes what the profile says."""
        if profile.learner == "torch":
            return cls(checkpointing=profile.gradient_checkpointing)
        half = profile.precision == "bfloat16"
        return cls(weight=2 if half else 4, optimiser=12 if half else 8, ranks=profile.ranks, zero_stage=profile.zero_stage,
                   offload_optimiser=profile.offload_optimizer, offload_parameters=profile.offload_parameters,
                   checkpointing=profile.gradient_checkpointing, loaded=4)

    def share(self, from_stage: int) -> float:
        """What one rank keeps of something that ZeRO divides from `from_stage` on."""
        return 1.0 / self.ranks if self.zero_stage >= from_stage else 1.0


def trained(shape: Shape, adapter: Mapping[str, Any]) -> tuple[int, int]:
    """Parameters that learn, and layers that must keep their activations: those above the lowest one that learns."""
    linear = 2 * (shape.hidden + shape.query) + 2 * (shape.hidden + shape.key_value) + 3 * (shape.hidden + shape.intermediate)
    known: dict[str, Callable[[], tuple[int, int]]] = {
        "lora": lambda: (shape.layers * adapter.get("rank", 16) * linear, shape.layers),
        "top_layers": lambda: (min(adapter.get("count", 1), shape.layers) * shape.layer + shape.hidden, min(adapter.get("count", 1), shape.layers)),
    }
    return known.get(str(adapter["name"]), lambda: (shape.parameters, shape.layers))()


def kept_activations(shape: Shape, tokens: float, layers: int, *, bytes_each: int, checkpointing: bool) -> float:
    """What autograd keeps of `tokens` for a backward through `layers`. A layer keeps, a token: for each of two norms its input and
    the normalised one in float32 and its output; query, repeated key and value, attention's output twice; four of the MLP.
    Under checkpointing each layer keeps its input and one layer at a time is computed again."""
    a_layer = 16 * shape.hidden + bytes_each * (2 * shape.hidden + 5 * shape.query + 4 * shape.intermediate)
    return tokens * (layers * bytes_each * shape.hidden + a_layer if checkpointing and layers else layers * a_layer)


def passing(shape: Shape, tokens: float, bytes_each: int) -> float:
    """What one layer of a pass without gradients holds, with the logits of one chunk."""
    return tokens * bytes_each * (3 * shape.hidden + 3 * shape.query + 3 * shape.intermediate) + logits(shape, min(tokens, CHUNK))


def logits(shape: Shape, positions: float) -> float:
    """Float32 logits, their probabilities and one more of the size."""
    return 12 * positions * shape.vocabulary


def training(shape: Shape, adapter: Mapping[str, Any], layout: Layout, tokens: float) -> tuple[Parts, float]:
    """(bytes by part on one device, bytes on the host) of learning with `tokens` in one pass."""
    learns, layers = trained(shape, adapter)
    weights = layout.weight * shape.parameters * layout.share(3)
    optimiser = layout.optimiser * learns * layout.share(1)
    host = float(layout.loaded * layout.ranks * shape.parameters)
    if layout.offload_parameters:
        host = max(host, weights * layout.ranks)
        weights = layout.weight * (2 * shape.layer + shape.vocabulary * shape.hidden)  # two layers at a time, and the embeddings
    elif layout.zero_stage >= 3:
        weights += layout.weight * (shape.layer + shape.vocabulary * shape.hidden)  # gathered one layer at a time
    if layout.offload_optimiser:
        host += optimiser * layout.ranks
        optimiser = 0.0
    return {
        "weights": weights, "gradients": layout.weight * learns * layout.share(2), "optimiser": optimiser,
        "activations": kept_activations(shape, tokens, layers, bytes_each=layout.weight, checkpointing=layout.checkpointing)
        + logits(shape, min(tokens, CHUNK)),
    }, host


def cache(shape: Shape, *, prompt: float, answer: float, rows: int, each: int, bytes_each: int) -> float:
    """Keys and values while `rows` answers are written, `each` to a prompt that is kept once."""
    slots = 2 * -(-rows // max(each, 1)) if rows > each else 1
    return 2 * shape.layers * shape.key_value * bytes_each * (slots * prompt + rows * answer)


def answering(profile: Profile) -> int:
    """Bytes of a weight in the built-in engine: the learner's precision on a GPU, which a profile states, float32 on the host."""
    return 2 if profile.precision == "bfloat16" and profile.hardware.memory_gb is not None else 4


def sampling(shape: Shape, profile: Profile, *, prompt: float, answer: float, rows: int, each: int) -> Parts:
    """Bytes by part on one device while answers are written. The built-in engine reads `rows` answers' prompts at once and keeps
    all their keys and values; vLLM reads in chunks and has its `cache_gb`, or must at least have room for the answers to one prompt, and
    beside it the built-in engine scores."""
    if profile.engine == "vllm":
        half, spread = 2 if profile.vllm.dtype != "float32" else 4, profile.vllm.tensor_parallel
        least = cache(shape, prompt=prompt, answer=answer, rows=each, each=each, bytes_each=half) / spread
        return {"weights": half * shape.parameters / spread,
                "KV cache": max(least, (profile.vllm.cache_gb or 0.0) * 2**30),
                "activations": passing(shape, PREFILL, half) / spread,
                "scorer": sum(scoring(shape, profile, min(SCORED, profile.tokens_per_batch)).values())}
    own = answering(profile)
    return {"weights": float(own * shape.parameters), "output layer": _float_head(shape, own),
            "KV cache": cache(shape, prompt=prompt, answer=answer, rows=rows, each=each, bytes_each=own),
            "activations": max(passing(shape, prompt * -(-rows // max(each, 1)), own), logits(shape, rows))}


def scoring(shape: Shape, profile: Profile, tokens: float) -> Parts:
    """Bytes by part while the log-probs of given texts are taken from one model: by the built-in engine, whatever samples."""
    own = answering(profile)
    return {"weights": float(own * shape.parameters), "output layer": _float_head(shape, own), "activations": passing(shape, tokens, own)}


def _float_head(shape: Shape, own: int) -> float:
    """The output layer once more in float32, for the softmax, where the weights are in half precision."""
    return 4.0 * shape.vocabulary * shape.hidden if own < 4 else 0.0
