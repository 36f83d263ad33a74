"""Pair losses of Tulu 3, CoPG and MM-RLHF: closed forms, limits, and the optimum on a bandit."""

import dataclasses

import pytest
import torch
from torch.nn.functional import logsigmoid

from ratchet.components.piece import build
from ratchet.components.types import Batch, Outputs


def pairs(seed=0, **more):
    """Four pairs of answers of 1 to 6 tokens, in float64."""
    rng = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 7, (8,), generator=rng)
    mask = torch.arange(6)[None] < lengths[:, None]
    draw = lambda *shape: torch.randn(*shape, generator=rng, dtype=torch.float64)  # noqa: E731
    columns = {"logprobs.reference": draw(8, 6), "margin": draw(8).abs(), "reward.r": draw(8), **more}
    rows = torch.arange(8)
    return Outputs({"logprobs": draw(8, 6)}), Batch({}, mask, columns, rows // 2, rows // 2, ("",) * 8)


def loss(name, out, batch, **options):
    return build("objective", {"name": name, **options})(out, batch).loss


def test_dpo_norm_is_the_published_loss_of_per_token_means():
    """TRL's `sigmoid_norm`: log-ratios summed, divided by the answer's length, then DPO's sigmoid."""
    out, batch = pairs()
    ratios = ((out.logprobs - batch["logprobs.reference"]) * batch.mask).sum(1) / batch.mask.sum(1)
    expected = -logsigmoid(5.0 * (ratios[0::2] - ratios[1::2]))
    torch.testing.assert_close(loss("dpo_norm", out, batch), expected, rtol=1e-5, atol=1e-5)


def test_dpo_norm_of_answers_of_one_length_is_dpo_with_beta_over_the_length():
    out, batch = pairs()
    batch = Batch({}, torch.ones(8, 6, dtype=torch.bool), batch.columns, batch.group, batch.unit, batch.ids)
    torch.testing.assert_close(
        loss("dpo_norm", out, batch, beta=3.0), loss("preference.dpo", out, batch, beta=0.5)
    )


def test_mm_dpo_without_scale_is_dpo_and_a_larger_margin_pushes_harder():
    out, batch = pairs()
    torch.testing.assert_close(loss("mm_dpo", out, batch, scale=0.0), loss("preference.dpo", out, batch))
    same = Outputs({"logprobs": batch["logprobs.reference"].clone().requires_grad_()})
    steepness = []
    for margin in (0.0, 1.0, 10.0):
        margins = torch.full((8,), margin, dtype=torch.float64)
        batch = dataclasses.replace(batch, columns={**batch.columns, "margin": margins})
        (slope,) = torch.autograd.grad(loss("mm_dpo", same, batch).sum(), same.logprobs)
        steepness.append(float(slope.abs().max()))
    assert steepness[0] == pytest.approx(0.05)
    assert steepness[0] < steepness[1] < steepness[2] < 0.05 * 1.5


def test_copg_with_rewards_of_a_quarter_is_ipo():
    """R = 1/4 and -1/4: (1/2 - beta z)^2 / (2 beta) = beta / 2 x (z - 1 / (2 beta))^2."""
    rewards = torch.tensor([0.25, -0.25] * 4, dtype=torch.float64)
    out, batch = pairs(**{"reward.r": rewards})
    torch.testing.assert_close(
        loss("copg", out, batch, reward="reward.r", beta=0.3),
        0.15 * loss("preference.ipo", out, batch, beta=0.3),
    )


def test_copg_gradient_is_the_contrastive_policy_gradient():
    out, batch = pairs()
    out = Outputs({"logprobs": out.logprobs.requires_grad_()})
    (slope,) = torch.autograd.grad(loss("copg", out, batch, reward="reward.r", beta=0.7).sum(), out.logprobs)
    with torch.no_grad():
        ratio = ((out.logprobs - batch["logprobs.reference"]) * batch.mask).sum(1)
        regularised = batch["reward.r"] - 0.7 * ratio
        other = regularised.view(4, 2).flip(1).reshape(8)
    torch.testing.assert_close(-slope, (regularised - other)[:, None] * batch.mask.double())


@pytest.mark.parametrize("behaviour", [(0.2, 0.2, 0.2, 0.2, 0.2), (0.9, 0.04, 0.03, 0.02, 0.01)])
def test_copg_reaches_the_regularised_optimum_whichever_policy_sampled(behaviour):
    """Five arms, all pairs weighted by the behaviour policy; the optimum is ref exp(R / beta) / Z."""
    reference = torch.tensor([0.1, 0.3, 0.2, 0.3, 0.1], dtype=torch.float64)
    reward, beta = torch.tensor([1.0, 0.0, 0.5, -0.5, 0.8], dtype=torch.float64), 0.5
    optimum = (reference.log() + reward / beta).softmax(0)
    arms = torch.cartesian_prod(torch.arange(5), torch.arange(5)).flatten()
    rows, mu = torch.arange(50), torch.tensor(behaviour, dtype=torch.float64)
    weights = (mu[arms[0::2]] * mu[arms[1::2]]).detach()
    columns = {"logprobs.reference": reference.log()[arms, None], "reward.r": reward[arms]}
    batch = Batch({}, torch.ones(50, 1, dtype=torch.bool), columns, rows // 2, rows // 2, ("",) * 50)
    logits = reference.log().clone().requires_grad_()
    optimiser = torch.optim.LBFGS([logits], max_iter=200, line_search_fn="strong_wolfe")

    def step():
        optimiser.zero_grad()
        out = Outputs({"logprobs": logits.log_softmax(0)[arms, None]})
        value = (weights * loss("copg", out, batch, reward="reward.r", beta=beta)).sum()
        value.backward()
        return value

    optimiser.step(step)
    policy = logits.detach().softmax(0)
    assert float((optimum * (optimum / policy).log()).sum()) < 1e-3
