"""Packed forward pass: a batch to log-probs, entropies, values or scores. The only place with the shift by
one position.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ratchet.components.errors import ContractError
from ratchet.components.models.attention import PackedPlan
from ratchet.components.models.logprobs import chosen_logprobs
from ratchet.components.models.products import product_precision
from ratchet.components.models.reward import MeanReward
from ratchet.components.models.value import PolicyWithValue
from ratchet.components.types import Batch, Outputs

OUTPUTS = {
    "policy": {"logprobs", "entropy"},
    "policy_with_value": {"logprobs", "entropy", "values"},
    "reward": {"scores"},
}
SCALED = ("final_logit_softcapping", "logits_scaling", "logit_scale")


def model_outputs(model: nn.Module, kind: str, batch: Batch, outputs: frozenset[str]) -> Outputs:
    """Requested outputs of a batch: `logprobs`, `entropy`, `values` (B,T), zero where the loss mask is False;
    `scores` (B,).

    logprobs[b, t] is log p(token t | tokens before t) at temperature 1; values[b, t] is the value of the
    state before token t. Both read the hidden state at t - 1. `ContractError` for outputs that this kind of
    model does not have.
    """
    if not outputs <= OUTPUTS[kind]:
        raise ContractError(
            f"a model of kind {kind!r} has no output {', '.join(sorted(outputs - OUTPUTS[kind]))}; "
            f"available: {', '.join(sorted(OUTPUTS[kind]))}"
        )
    if kind == "reward":
        return Outputs({"scores": _read(model.score, reward_states(model, batch)).float()})  # pyright: ignore[reportArgumentType]
    rows = list(batch.inputs["tokens"])
    plan = PackedPlan(rows)
    language = model.policy if isinstance(model, PolicyWithValue) else model
    hidden = hidden_states(language, plan.tokens, plan.positions, plan)
    if batch.mask[:, 0].any():
        row = int(batch.mask[:, 0].nonzero()[0])
        raise ContractError(
            f"prompt {batch.ids[row]!r}: the loss mask includes the first token of a row, which has no "
            "preceding token"
        )
    before = torch.cat(
        [index[batch.mask[b, : len(index)].nonzero()[:, 0] - 1] for b, index in enumerate(plan.index)]
    )
    targets = torch.cat([tokens[batch.mask[b, : len(tokens)]] for b, tokens in enumerate(rows)])
    # Equal rows, such as one chosen answer in several pairs, have equal outputs: computed once.
    (before, targets), same = torch.unique(torch.stack([before, targets]), dim=1, return_inverse=True)
    states = hidden[before.to(hidden.device)]
    row, step = batch.mask.nonzero().to(hidden.device).unbind(1)
    found: dict[str, Tensor] = {}

    def spread(values: Tensor) -> Tensor:
        return values.new_zeros(batch.mask.shape).index_put((row, step), values[same.to(values.device)])

    if outputs & {"logprobs", "entropy"}:
        head = output_head(language)
        bias = (
            None if head.bias is None else head.bias.float()
        )  # softmax in float32, whatever the model's dtype
        logprobs, entropy = chosen_logprobs(
            states.float(),
            head.weight.float(),  # pyright: ignore[reportArgumentType]
            targets.to(states.device),
            entropy="entropy" in outputs,
            bias=bias,  # pyright: ignore[reportArgumentType]
        )
        found["logprobs"] = spread(logprobs)
        if entropy is not None:
            found["entropy"] = spread(entropy)
    if "values" in outputs:
        found["values"] = spread(_read(model.value_head, states))  # pyright: ignore[reportArgumentType]
    return Outputs({name: found[name] for name in outputs})


def reward_states(model: nn.Module, batch: Batch) -> Tensor:
    """(B, hidden): inputs of a reward model's head: the mean over masked-in tokens for a `MeanReward`, the
    last token for a sequence classifier.
    """
    plan = PackedPlan(list(batch.inputs["tokens"]))
    hidden = hidden_states(model, plan.tokens, plan.positions, plan)
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


def hidden_states(language: nn.Module, tokens: Tensor, positions: Tensor, plan: object) -> Tensor:
    """Last hidden states (N, H) of a flat row (1, N) under a plan."""
    layers = backbone(language)
    device = next(layers.parameters()).device
    return layers(
        input_ids=tokens.to(device), position_ids=positions.to(device), use_cache=False, plan=plan
    ).last_hidden_state[0]


def backbone(language: nn.Module) -> nn.Module:
    """The model without its head."""
    return getattr(language, language.base_model_prefix)  # pyright: ignore[reportArgumentType]


def output_head(language: nn.Module) -> nn.Module:
    """The output layer (lm_head). `ContractError` for models that transform logits after it."""
    config = language.config.get_text_config()  # pyright: ignore[reportAttributeAccessIssue, reportCallIssue]
    for name in SCALED:
        if getattr(config, name, None) not in (None, 1, 1.0):
            raise ContractError(
                f"{type(language).__name__}: config.{name} = {getattr(config, name)} transforms logits "
                "after the output "
                "layer, which the chunked log-probs do not support; use a model without it"
            )
    return language.get_output_embeddings()  # pyright: ignore[reportCallIssue]
