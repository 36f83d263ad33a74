"""KL penalty objective, estimated at the sampled steps (Schulman 2020, "Approximating KL divergence")."""

from __future__ import annotations

from typing import Literal

import torch

from ratchet.components.piece import piece
from ratchet.components.types import Batch, Outputs, Terms


@piece(reads=("logprobs.{to}",), outputs=("logprobs",), unit="step", paper="arXiv:2402.03300")
def kl(
    out: Outputs, batch: Batch, *, to: str = "reference", estimator: Literal["k1", "k2", "k3"] = "k3"
) -> Terms:
    """KL(pi || `to`) per step, with d = log pi - log `to`: k1 = d, k2 = d^2/2, k3 = exp(-d) - 1 + d (GRPO eq.
    4).

    As a *loss*, k1 has a gradient of mean zero (use it as a metric or in the reward), k2 has the gradient of
    the reverse KL on on-policy samples, k3 that of the forward KL. The metric `kl` is k1, the unbiased
    estimate.
    """
    d = torch.where(batch.mask, out.logprobs - batch[f"logprobs.{to}"], 0.0)
    if estimator == "k1":
        loss = d
    elif estimator == "k2":
        loss = d**2 / 2
    else:
        loss = torch.expm1(-d) + d
    return Terms(loss, {"kl": d.detach()})
