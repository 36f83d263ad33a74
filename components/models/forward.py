"""Rows to outputs: one packed forward pass of a model of any kind. The shift by one lives here and nowhere else."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ratchet.components.errors import ContractError
from ratchet.components.models.attention import PackedPlan
from ratchet.components.models.logprobs import chosen_logprobs
from ratchet.components.models.reward import MeanReward
from ratchet.components.models.value import PolicyWithValue
from ratchet.components.types import Batch, Outputs

ASKS = {"policy": {"logprobs", "entropy"}, "policy_with_value": {"logprobs", "entropy", "values"}, "reward": {"scores"}}
SCALED = ("final_logit_softcapping", "logits_scaling", "logit_scale")


def outputs(model: nn.Module, kind: str, batch: Batch, asks: frozenset[str]) -> Outputs:
    """What was asked of a batch: `logprobs`, `entropy`, `values` (B,T), zero where the mask is False; `scores` (B,).

    logprobs[b, t] is log p(token t | tokens before t) at temperature 1, values[b, t] the value of the state in which
    token t was chosen, so both read the hidden state at t - 1.
    """
    if not asks <= ASKS[kind]:
        raise ContractError(f"a model of kind {kind!r} cannot give {', '.join(sorted(asks - ASKS[kind]))}; it gives {', '.join(sorted(ASKS[kind]))}")
    if kind == "reward":
        return Outputs({"scores": _read(model.score, reward_states(model, batch)).float()})
    rows = list(batch.inputs["tokens"])
    plan = PackedPlan(rows, batch.group.tolist())
    language = model.policy if isinstance(model, PolicyWithValue) else model
    hidden = hidden_states(language, plan.tokens, plan.positions, plan)
    if batch.mask[:, 0].any():
        row = int(batch.mask[:, 0].nonzero()[0])
        raise ContractError(f"prompt {batch.ids[row]!r}: the first token of a row is marked as chosen, but nothing precedes it")
    before = torch.cat([index[batch.mask[b, : len(index)].nonzero()[:, 0] - 1] for b, index in enumerate(plan.index)])
    states = hidden[before.to(hidden.device)]
    row, step = batch.mask.nonzero().to(hidden.device).unbind(1)
    found: dict[str, Tensor] = {}

    def spread(values: Tensor) -> Tensor:
        return values.new_zeros(batch.mask.shape).index_put((row, step), values)

    if asks & {"logprobs", "entropy"}:
        head = output_head(language)
        targets = torch.cat([tokens[batch.mask[b, : len(tokens)]] for b, tokens in enumerate(rows)])
        bias = None if head.bias is None else head.bias.float()  # a softmax over the vocabulary needs float32, whatever the model is in
        logprobs, entropy = chosen_logprobs(states.float(), head.weight.float(), targets.to(states.device), entropy="entropy" in asks, bias=bias)
        found["logprobs"] = spread(logprobs)
        if entropy is not None:
            found["entropy"] = spread(entropy)
    if "values" in asks:
        found["values"] = spread(_read(model.value_head, states))
    return Outputs({name: found[name] for name in asks})


def reward_states(model: nn.Module, batch: Batch) -> Tensor:
    """(B, hidden): what the head of a reward model reads of each row, the mean over its chosen tokens for a `MeanReward`,
    the last token for a sequence classifier."""
    plan = PackedPlan(list(batch.inputs["tokens"]), batch.group.tolist())
    hidden = hidden_states(model, plan.tokens, plan.positions, plan)
    if isinstance(model, MeanReward):
        judged = [places[batch.mask[b, : len(places)]].to(hidden.device) for b, places in enumerate(plan.index)]
        return torch.stack([hidden[places].float().mean(0) for places in judged])
    return hidden[torch.stack([places[-1] for places in plan.index]).to(hidden.device)]


def _read(head: nn.Module, states: Tensor) -> Tensor:
    """What a head with one output says of states (N, H): (N,), in its own precision, which may be finer than the model's."""
    return head(states.to(next(head.parameters()).dtype))[:, 0]


def hidden_states(language: nn.Module, tokens: Tensor, positions: Tensor, plan: object) -> Tensor:
    """Last hidden states (N, H) of a flat row (1, N) under a plan."""
    backbone = getattr(language, language.base_model_prefix)
    device = next(backbone.parameters()).device
    return backbone(input_ids=tokens.to(device), position_ids=positions.to(device), use_cache=False, plan=plan).last_hidden_state[0]


def output_head(language: nn.Module) -> nn.Module:
    """The output layer; `ContractError` for models that do more to their logits than multiply."""
    config = language.config.get_text_config()
    for name in SCALED:
        if getattr(config, name, None) not in (None, 1, 1.0):
            raise ContractError(f"{type(language).__name__}: config.{name} = {getattr(config, name)} changes the logits after the output "
                                "layer, which the chunked log-probs do not know; use a model without it")
    return language.get_output_embeddings()
