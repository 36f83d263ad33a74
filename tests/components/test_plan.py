"""What the stages of a plan read."""

from __future__ import annotations

from collections import Counter

import pytest

from ratchet.components.plan import Stage, plan
from ratchet.components.recipe import load


@pytest.mark.parametrize(("changes", "held"), [
    (["online.keep_earlier=true"], {1: [1], 2: [1, 2], 3: [1, 2, 3], 4: [1, 2, 3, 4]}),
    (["online.keep_earlier=false"], {1: [1], 2: [2], 3: [3], 4: [4]}),
    (["online.by_round={4: {keep_earlier: true}}"], {1: [1], 2: [2], 3: [3], 4: [1, 2, 3, 4]}),
    (["online.keep_earlier=true", "online.by_round={2: {keep_earlier: false}, 3: {keep_earlier: false}}"], {1: [1], 2: [2], 3: [3], 4: [1, 2, 3, 4]}),
])
def test_each_earlier_round_is_kept_once(changes: list[str], held: dict[int, list[int]]) -> None:
    stages = plan(*load("chat", overrides=["online.rounds=4", "online.prompts_per_round=8", *changes]))

    def rounds_in(stage: Stage) -> Counter[int]:
        """How often the product of a `select` holds the pairs of each round."""
        return sum((rounds_in(stages[v]) for k, v in stage.inputs.items() if k.startswith("earlier_")), Counter([stage.round or 0]))

    assert {i: sorted(rounds_in(stages[f"select_{i}"]).elements()) for i in held} == held
