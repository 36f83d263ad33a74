"""Packed forward pass: a batch to log-probs, entropies, values, scores, and the outputs of readers."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ratchet.components.errors import ContractError
from ratchet.components.models.attention import PackedPlan
from ratchet.components.models.families import family_outputs, is_family
from ratchet.components.models.images import image_rows
from ratchet.components.models.layers import hidden_states
from ratchet.components.models.outputs import OUTPUTS
from ratchet.components.models.products import product_precision
from ratchet.components.models.reading import Reading
from ratchet.components.models.reward import MeanReward
from ratchet.components.types import Batch, Outputs, Read


def model_outputs(model: nn.Module, kind: str, batch: Batch, outputs: frozenset[str | Read]) -> Outputs:
    """Requested outputs of a batch: `logprobs`, `entropy`, `values` (B,T), zero where the loss mask is False;
    `scores` (B,); those of readers, by their `Read`.

    logprobs[b, t] is log p(token t | tokens before t) at temperature 1; values[b, t] is the value of the
    state before token t. Both read the hidden state at t - 1; a model of a family computes its own outputs of
    step t. `ContractError` for outputs that this kind of
    model does not have.
    """
    own = {name for name in outputs if isinstance(name, str)}
    reads = [read for read in outputs if isinstance(read, Read)]
    if not own <= OUTPUTS[kind] or (reads and (kind == "reward" or is_family(model))):
        raise ContractError(
            f"a model of kind {kind!r} has no output "
            f"{', '.join(sorted({*(own - OUTPUTS[kind]), *(read.name for read in reads)}))}; "
            f"available: {', '.join(sorted(OUTPUTS[kind]))}"
        )
    if is_family(model):
        with product_precision("float32"):
            return Outputs(family_outputs(model, batch, frozenset(own)))
    if kind == "reward":
        return Outputs({"scores": _read(model.score, reward_states(model, batch)).float()})  # pyright: ignore[reportArgumentType]
    reading, found = Reading(model, batch), dict[str | Read, Tensor]()
    if own & {"logprobs", "entropy"}:
        logprobs, entropy = reading.logprobs(reading.states, entropy="entropy" in own)
        found["logprobs"] = reading.spread(logprobs)
        if entropy is not None:
            found["entropy"] = reading.spread(entropy)
    if "values" in own:
        found["values"] = reading.spread(_read(model.value_head, reading.states))  # pyright: ignore[reportArgumentType]
    for read in reads:
        found[read] = read.function(reading, **dict(read.options))
    return Outputs({name: found[name] for name in outputs})


def reward_states(model: nn.Module, batch: Batch) -> Tensor:
    """(B, hidden): inputs of a reward model's head: the mean over masked-in tokens for a `MeanReward`, the
    last token for a sequence classifier.
    """
    rows = list(batch.inputs["tokens"])
    images = image_rows(model, rows, batch.inputs.get("images", ()))
    plan = PackedPlan(images.rows if images else rows)
    embeddings = images.embed(plan.tokens) if images else None
    hidden = hidden_states(model, plan.tokens, plan.positions, plan, embeddings=embeddings)
    if isinstance(model, MeanReward):
        masked = [
            places[batch.mask[b, : len(places)]].to(hidden.device) for b, places in enumerate(plan.index)
        ]
        return torch.stack([hidden[places].float().mean(0) for places in masked])
    return hidden[torch.stack([places[-1] for places in plan.index]).to(hidden.device)]


def _read(head: nn.Module, states: Tensor) -> Tensor:
    """Apply a head with one output to states (N, H): (N,), in the head's dtype, which may be more precise
    than the model's, without mixed precision.
    """
    with product_precision("float32"):
        return head(states.to(next(head.parameters()).dtype))[:, 0]
