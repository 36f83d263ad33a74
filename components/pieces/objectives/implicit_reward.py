"""Inverse soft Q-learning for language models: squared rewards that logits imply, beside likelihood."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Bool, Share
from ratchet.components.types import Batch, Outputs, Terms

if TYPE_CHECKING:
    from ratchet.components.models.reading import Reading


def logit(reading: Reading) -> Tensor:
    """Q(s_t, a_t), (B,T): the logit of each token of the loss mask in the state before it, in float32."""
    from ratchet.components.models.layers import output_layer

    head, mask = output_layer(reading.language), reading.batch.mask
    row, step = mask.nonzero().unbind(1)
    before = torch.cat(
        [index[mask[b, : len(index)].nonzero()[:, 0] - 1] for b, index in enumerate(reading.plan.index)]
    )
    tokens = torch.cat(
        [tokens[mask[b, : len(tokens)]] for b, tokens in enumerate(reading.batch.inputs["tokens"])]
    ).to(head.weight.device)
    states = reading.hidden[before.to(reading.hidden.device)].float() * head.scale
    values = (states * head.weight[tokens].float()).sum(-1)
    if head.bias is not None:
        values = values + head.bias[tokens].float()
    if head.softcap is not None:
        values = head.softcap * (values / head.softcap).tanh()
    at = (row.to(values.device), step.to(values.device))
    return values.new_zeros(mask.shape).index_put(at, values)


@piece(outputs=("logprobs",), readers={"logit": "step"}, unit="step", paper="arXiv:2409.01369")
def implicit_reward(out: Outputs, batch: Batch, *, gamma: Share = 1.0, detach_next: Bool = False) -> Terms:
    """r_t^2 with r_t = Q(s_t, a_t) - gamma V(s_t+1), one term per step: the temporal-difference term of
    offline IQLearn, to be added to `likelihood` with the weight lambda (Wulfmeier et al., section 3). The
    logits are soft Q-values, V(s) = logsumexp of Q(s, .) = Q(s, a) - log p(a | s), and V is 0 after the last
    token of a turn. Gradients flow through V(s_t+1) too, unless `detach_next`. With gamma 1 the rewards of an
    answer add up to its log-prob + V of the prompt.

    Logits 2 and 1.5, log-probs -1 and -0.5: V is 3 and 2, r is 2 - 2 and 1.5 - 0.

    >>> implicit_reward(Outputs({"logit": torch.tensor([[2.0, 1.5]]),
    ...     "logprobs": torch.tensor([[-1.0, -0.5]])}), batch).loss
    tensor([[0.0000, 2.2500]])
    """
    values = torch.where(batch.mask, out.logit - out.logprobs, 0.0)
    after = torch.cat([values[:, 1:], torch.zeros_like(values[:, :1])], 1)
    rewards = torch.where(batch.mask, out.logit, 0.0) - gamma * (after.detach() if detach_next else after)
    rewards = torch.where(batch.mask, rewards, 0.0)
    return Terms(rewards**2, {"reward": rewards.detach(), "value": values.detach()})
