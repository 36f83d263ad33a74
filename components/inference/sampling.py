"""Token sampling (temperature, top-k, top-p) by inverse transform sampling from given uniform numbers."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

BLOCK = 256
"""Vocabulary block size: probabilities are summed per block, and only one block is searched for the token."""
BLOCKS_AT_ONCE = 8
"""Blocks processed at once on CPU: 2,048 tokens x 128 rows of float32 are 1 MB, which fits a core's cache."""


def sample(
    logits: Tensor, uniforms: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor
) -> tuple[Tensor, Tensor]:
    """Sample one token per row: tokens (R,) and their log-probs (R,) at temperature 1 without truncation.

    logits (V, R), float32 or bfloat16, one column per row, as `weight @ hidden.T` gives them; uniforms
    (R,) in [0, 1); temperature (R,), 0 is greedy; top_k (R,), 0 is off; top_p (R,), 1 is off (nucleus
    sampling, arXiv 1904.09751).
    Settings are CPU tensors, results are on the logits' device. Truncated tokens are set to -inf in `logits`
    in place.

    The log-probs equal the trainer's `logprobs`, so importance ratios start at 1 at any temperature. A row's
    token depends only on its own logits and uniform number. Rows without top-k and top-p need no sorting.
    """
    top = logits.amax(0).float()
    greedy = temperature == 0
    temperature = temperature.masked_fill(greedy, 1.0)
    same, any_greedy = bool((temperature == 1).all()), bool(greedy.any())
    cut = ((top_k > 0) | (top_p < 1)).nonzero()[:, 0].tolist()
    uniforms, temperature, greedy = (given.to(logits.device) for given in (uniforms, temperature, greedy))
    normaliser = torch.zeros_like(top)
    blocks = top.new_empty(-(-len(logits) // BLOCK), logits.shape[1])
    at_once = BLOCKS_AT_ONCE if logits.device.type == "cpu" else len(blocks)
    for at, chunk in zip(range(0, len(blocks), at_once), logits.split(BLOCK * at_once)):
        below = chunk.float() - top
        sums = _block_sums(below.exp() if not same else below.exp_())
        normaliser += sums.sum(0)
        blocks[at : at + at_once] = sums if same else _block_sums(below.div_(temperature).exp_())
    for row in cut:
        weights = _cut(
            ((logits[:, row].float() - top[row]) / temperature[row]).exp_(),
            int(top_k[row]),
            float(top_p[row]),
        )
        logits[:, row].masked_fill_(weights == 0, -torch.inf)
        blocks[:, row] = _block_sums(weights[:, None])[:, 0]
    tokens = _invert(logits, blocks, uniforms, top, temperature)
    if any_greedy:
        tokens = torch.where(greedy, logits.argmax(0), tokens)
    return tokens, logits.gather(0, tokens[None])[0].float() - top - normaliser.log()


def unrounded(logprobs: Tensor, rounded: Tensor, exact: Tensor) -> Tensor:
    """Log-probs (R,) of drawn tokens, given those from rounded logits, the tokens' `rounded` logits and their
    `exact` ones (R,), which replace them in the normaliser too. Only the rounding of all other tokens' logits
    is left.
    """
    off = exact - rounded.float()
    return logprobs + off - torch.log1p(logprobs.exp() * torch.expm1(off))


def _block_sums(weights: Tensor) -> Tensor:
    """(V, R) -> (ceil(V / BLOCK), R)"""
    if len(weights) % BLOCK:
        weights = F.pad(weights, (0, 0, 0, -len(weights) % BLOCK))
    return weights.view(-1, BLOCK, weights.shape[1]).sum(1)


def _invert(logits: Tensor, blocks: Tensor, uniforms: Tensor, top: Tensor, temperature: Tensor) -> Tensor:
    """The first token whose cumulative weight exceeds u times the total: block first, then token within the
    block.
    """
    totals = blocks.t().double().cumsum(1)
    target = (uniforms.double() * totals[:, -1])[:, None]
    block = torch.searchsorted(totals, target, right=True).clamp(max=blocks.shape[0] - 1)
    before = F.pad(totals, (1, 0)).gather(1, block)
    within = block * BLOCK + torch.arange(BLOCK, device=logits.device)
    found = (
        logits.t()
        .gather(1, within.clamp(max=len(logits) - 1))
        .float()
        .masked_fill(within >= len(logits), -torch.inf)
    )
    inside = ((found - top[:, None]) / temperature[:, None]).exp_().double().cumsum(1)
    # Rounding can leave a target above the block's own sum: clamp, so that no token of weight 0 is drawn.
    left = torch.minimum(target - before, inside[:, -1:] * (1 - 1e-12))
    return (block * BLOCK + torch.searchsorted(inside, left, right=True).clamp(max=BLOCK - 1))[:, 0]


def _cut(weights: Tensor, top_k: int, top_p: float) -> Tensor:
    """Weights (V,) with all but the top-k set to 0, then all but the smallest set of largest weights with a
    share of at least `top_p`.
    """
    kept, where = weights.topk(top_k) if 0 < top_k < len(weights) else weights.sort(descending=True)
    if top_p < 1:
        before = kept.cumsum(0) - kept
        kept = torch.where(before < top_p * kept.sum(), kept, 0.0)
    return torch.zeros_like(weights).scatter_(0, where, kept)
