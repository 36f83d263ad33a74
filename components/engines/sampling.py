"""One token a row from its logits, by inverting the distribution function at a given uniform number."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 256


def sample(logits: Tensor, uniforms: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor) -> tuple[Tensor, Tensor]:
    """Tokens (R,) and their log-probs (R,) under the model itself: temperature 1, nothing cut off.

    logits (R, V); uniforms (R,) in [0, 1); temperature (R,), 0 takes the likeliest; top_k (R,), 0 is off; top_p (R,), 1 is
    off (arXiv 1904.09751). The log-probs are the learner's own `logprobs`, so importance ratios start at 1 whatever the
    temperature was. A row's token depends on its own logits and uniform alone. Nothing is sorted where both are off.
    """
    top = logits.max(1, keepdim=True).values
    weights = (logits - top).exp_()
    blocks = _block_sums(weights)
    normaliser = blocks.sum(1).log()
    greedy = temperature == 0
    warm = (temperature != 1) & ~greedy
    if warm.any():
        weights[warm] = ((logits[warm] - top[warm]) / temperature[warm, None]).exp_()
    for row in ((top_k > 0) | (top_p < 1)).nonzero()[:, 0].tolist():
        weights[row] = _cut(weights[row], int(top_k[row]), float(top_p[row]))
        warm[row] = True
    if warm.any():
        blocks[warm] = _block_sums(weights[warm])
    tokens = _invert(weights, blocks, uniforms)
    if greedy.any():
        tokens = torch.where(greedy, logits.argmax(1), tokens)
    return tokens, logits.gather(1, tokens[:, None])[:, 0] - top[:, 0] - normaliser


def _block_sums(weights: Tensor) -> Tensor:
    return _padded(weights).view(len(weights), -1, BLOCK).sum(2)


def _padded(weights: Tensor) -> Tensor:
    return F.pad(weights, (0, -weights.shape[1] % BLOCK)) if weights.shape[1] % BLOCK else weights


def _invert(weights: Tensor, blocks: Tensor, uniforms: Tensor) -> Tensor:
    """The first token whose running sum exceeds u times the total; a block is found first, then a token within it."""
    totals = blocks.double().cumsum(1)
    target = (uniforms.double() * totals[:, -1])[:, None]
    block = torch.searchsorted(totals, target, right=True).clamp(max=blocks.shape[1] - 1)
    before = F.pad(totals, (1, 0)).gather(1, block)
    inside = _padded(weights).view(len(weights), -1, BLOCK)[torch.arange(len(weights)), block[:, 0]].double().cumsum(1)
    # The block's own sum may round below what is left of the target: stay under it, so no token of weight 0 is taken.
    left = torch.minimum(target - before, inside[:, -1:] * (1 - 1e-12))
    return (block * BLOCK + torch.searchsorted(inside, left, right=True).clamp(max=BLOCK - 1))[:, 0]


def _cut(weights: Tensor, top_k: int, top_p: float) -> Tensor:
    """Weights (V,) with all but the `top_k` largest set to 0, then all but the fewest largest that hold `top_p` of the rest."""
    kept, where = weights.topk(top_k) if 0 < top_k < len(weights) else weights.sort(descending=True)
    if top_p < 1:
        before = kept.cumsum(0) - kept
        kept = torch.where(before < top_p * kept.sum(), kept, 0.0)
    return torch.zeros_like(weights).scatter_(0, where, kept)
