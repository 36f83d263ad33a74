"""Testbed `bandit`: one-token answers with known payoffs and a known optimum."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count, Natural, Positive


@piece(paper="arXiv:1602.01783")
def bandit(
    *, size: Count = 200, seed: Natural = 0, contexts: Count = 8, best: Positive = 1.0, others: Positive = 0.5
) -> Iterator[dict[str, Any]]:
    """A contextual bandit, rows {id, prompt, meta}: in context c ("Game c: 3 =") the answer is a digit, which
    the tiny model writes with one token. One digit pays `best`, the others pay between 0 and `others`
    (`rewards.payoff` reads `meta["payoff"]`). The payoffs of a context depend on `seed` and c only, and the
    digit in the prompt on the row.

    Shows: whether a policy gradient reaches the optimum, an expected payoff of `best`, and how fast; payoffs,
    optimum and regret are exact. Does not show: credit assignment over several tokens, generalisation
    (training and held-out prompts share the contexts), learned rewards.
    """
    rng = random.Random(f"bandit {seed}")
    payoffs = []
    for _ in range(contexts):
        payoff = {str(digit): round(others * rng.random(), 3) for digit in range(10)}
        payoff[str(rng.randrange(10))] = best
        payoffs.append(payoff)
    for number in range(size):
        context = number % contexts
        yield {
            "id": f"bandit-{seed}-{number}",
            "prompt": f"Game {context + 1}: {rng.randrange(10)} + {rng.randrange(10)} =",
            "meta": {"payoff": payoffs[context]},
        }
