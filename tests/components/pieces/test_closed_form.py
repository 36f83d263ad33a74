"""Problems whose solution is known: the shipped rewards, advantages and objectives, with a table of logits in
the place of a language model, reach it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from ratchet.components.piece import build
from ratchet.components.pieces.testbeds.bandit import bandit
from ratchet.components.training.reduce import count, reduce
from ratchet.components.types import Batch, Context, Group, Outputs, Prompt, Trajectory

CYCLE = {"a": (3, 1, 2), "b": (2, 3, 1), "c": (1, 2, 3)}
"""Scores of actions by three kinds of judges: a > b > c, b > c > a and c > a > b."""
UNEQUAL = [0, 0, 1, 1, 2]
"""Two judges of the first kind, two of the second, one of the third: a beats b in 0.6, b beats c in 0.8 and c
beats a in 0.6 of the comparisons, so that the minimax winner is (0.6, 0.2, 0.2).
"""

WINS = np.array([[0.5, 0.6, 0.4], [0.4, 0.5, 0.8], [0.6, 0.2, 0.5]])


def answers(
    actions: Sequence[str], meta: Mapping[str, Any] | None = None, actors: Sequence[str] = ()
) -> Group:
    """A group of one-token answers."""
    prompt = Prompt("p", ({"role": "user", "content": "Act."},), meta=meta or {})
    trajectories = [
        Trajectory(
            (*prompt.messages, {"role": "assistant", "content": action}),
            {"tokens": [0]},
            [True],
            actor=actors[i] if actors else "policy",
        )
        for i, action in enumerate(actions)
    ]
    return Group(prompt, tuple(trajectories), {})


def annotated(group: Group, *specs: dict[str, Any]) -> Group:
    """The group with the columns of annotate pieces, in their order."""
    for spec in specs:
        written = build("annotate", spec)([group], Context(seed=0))
        columns = {name: values[0] for name, values in written.items()}
        group = Group(group.prompt, group.trajectories, {**group.columns, **columns})
    return group


def judged(group: Group, judges: Sequence[int]) -> Group:
    """The group with the scores of judges, as the columns s0, s1, ..."""
    scores = {
        f"s{j}": [float(CYCLE[t.text.strip()][kind]) for t in group.trajectories]
        for j, kind in enumerate(judges)
    }
    return Group(group.prompt, group.trajectories, {**group.columns, **scores})


def gradient(logits: Tensor, actions: Sequence[int], advantages: Sequence[float]) -> Tensor:
    """Gradient of `reinforce` with `row_sum` over a step of one-token answers."""
    rows = torch.arange(len(actions))
    mask = torch.ones(len(actions), 1, dtype=torch.bool)
    batch = Batch({}, mask, {"advantages": torch.tensor(advantages)}, rows, rows, tuple(map(str, rows)))
    logits = logits.detach().requires_grad_()
    logprobs = logits.log_softmax(-1)[torch.tensor(actions)][:, None]
    terms = build("objective", {"name": "reinforce"})(Outputs({"logprobs": logprobs}), batch)
    loss = reduce("row_sum", terms.loss, batch, count(batch, "step"))
    return torch.autograd.grad(loss.sum(), logits)[0]


def drawn(probabilities: Tensor, size: int, rng: np.random.Generator) -> list[int]:
    """`size` actions with counts within 1 of `size` x probability, by systematic sampling."""
    edges = probabilities.double().cumsum(0).numpy()
    points = (np.arange(size) + rng.random()) / size
    return np.minimum(np.searchsorted(edges, points), len(edges) - 1).tolist()


def test_rloo_reaches_the_optimum_of_a_bandit_within_two_per_cent() -> None:
    """Eight contexts of the testbed with ten actions each, 300 steps of eight answers; the optimum is 1."""
    rng, reached = np.random.default_rng(0), []
    for row in bandit(size=8, seed=1):
        payoff = torch.tensor([row["meta"]["payoff"][str(digit)] for digit in range(10)])
        logits = torch.zeros(10)
        for _ in range(300):
            actions = rng.choice(10, 8, p=logits.double().softmax(-1).numpy()).tolist()
            group = annotated(
                answers([str(action) for action in actions], row["meta"]),
                {"name": "rewards.payoff"},
                {"name": "advantages.leave_one_out", "reward": "reward.payoff"},
            )
            logits = logits - 2.0 * gradient(logits, actions, group.columns["advantages"])
        reached.append(float(logits.softmax(-1) @ payoff))
    assert np.mean(reached) >= 0.98, reached


def test_the_average_policy_of_spo_is_the_minimax_winner() -> None:
    """Natural gradient steps, which multiply each probability by exp(0.3 A). The policy itself goes round the
    winner, as no action is best; nothing is preferred to its average in more than half of the comparisons.
    """
    rng, logits, played = np.random.default_rng(0), torch.tensor([0.0, 0.5, -0.5]), []
    for _ in range(600):
        policy = logits.softmax(-1)
        played.append(policy.numpy())
        actions = drawn(policy, 24, rng)
        group = annotated(
            judged(answers(["abc"[action] for action in actions]), UNEQUAL),
            {"name": "rewards.win_rate", "rewards": [f"s{j}" for j in range(5)]},
            {"name": "advantages.leave_one_out", "reward": "reward.win_rate"},
        )
        logits = logits - 0.3 * gradient(logits, actions, group.columns["advantages"]) / policy
    average = np.mean(played, 0)
    np.testing.assert_allclose(average, [0.6, 0.2, 0.2], atol=0.05)
    assert (WINS @ average).max() <= 0.51 and np.ptp(played, 0).min() > 0.3


def nash_md(judges: Sequence[int], reference: Sequence[float], *, tau: float, own: float) -> np.ndarray:
    """The average of the second half of 300 steps of the pieces of the recipe `nash_md` against the mixture
    policy^own x reference^(1 - own), with `tau` the weight of the KL to the reference.
    """
    rng, played, size = np.random.default_rng(0), [], len(reference)
    to = torch.tensor(reference).log()
    logits = torch.zeros(size)
    for step in range(300):
        log_policy = logits.log_softmax(-1)
        mixture = (own * log_policy + (1 - own) * to).softmax(-1)
        own_actions, others = drawn(log_policy.exp(), 24, rng), drawn(mixture, 24, rng)
        actors = ["policy"] * 24 + ["mixture"] * 24
        group = judged(answers(["abc"[a] for a in own_actions + others], actors=actors), judges)
        logprobs = {
            f"logprobs.{name}": [[float(table[a])] for a in own_actions + others]
            for name, table in (("old", log_policy), ("reference", to))
        }
        group = annotated(
            Group(group.prompt, group.trajectories, {**group.columns, **logprobs}),
            {
                "name": "rewards.win_rate",
                "rewards": [f"s{j}" for j in range(len(judges))],
                "against": "mixture",
            },
        )
        (group,) = build("select", {"name": "by_actor", "actor": "policy"})([group], Context(seed=0))
        group = annotated(
            group,
            {"name": "advantages.kl_in_reward.row", "reward": "reward.win_rate", "beta": tau, "old": "old"},
            {"name": "advantages.fixed", "reward": "regularised"},
        )
        logits = logits - 0.5 * gradient(logits, own_actions, group.columns["advantages"])
        played += [log_policy.exp().numpy()] if step >= 150 else []
    return np.mean(played, 0)


@pytest.mark.parametrize("own", [1.0, 0.75])
def test_nash_md_reaches_the_regularised_equilibrium_of_two_actions(own: float) -> None:
    """a beats b in 2/3 of the comparisons. Whatever the opponent, P(a > .) - P(b > .) is 2/3 - 1/2, so that
    the equilibrium is sigmoid(1 / (6 tau) + log ref(a) / ref(b)).
    """
    tau, reference = 0.2, [0.4, 0.6]
    expected = 1 / (1 + np.exp(-1 / (6 * tau)) * reference[1] / reference[0])
    found = nash_md([0, 1, 2], reference, tau=tau, own=own)
    assert found[0] == pytest.approx(expected, abs=0.02)


@pytest.mark.parametrize("own", [1.0, 0.75])
def test_nash_md_reaches_the_regularised_equilibrium_of_a_cycle(own: float) -> None:
    """pi = ref exp(P(. > mixture of pi and ref) / tau) / Z."""
    tau, reference = 0.2, np.array([0.2, 0.5, 0.3])
    expected = reference
    for _ in range(2000):
        mixture = expected**own * reference ** (1 - own)
        better = reference * np.exp(WINS @ (mixture / mixture.sum()) / tau)
        expected = 0.95 * expected + 0.05 * better / better.sum()
    np.testing.assert_allclose(nash_md(UNEQUAL, reference.tolist(), tau=tau, own=own), expected, atol=0.02)
