"""What the check knows of groups before anything runs."""

from typing import Any

import pytest

from ratchet.components.recipes.check_sections import sampled


@pytest.mark.parametrize(
    ("rollout", "answers"),
    [
        ({"name": "sample", "responses_per_prompt": 4}, 4),
        ({"name": "sample", "responses_per_prompt": 1}, 1),
        ({"name": "recorded", "count": 4}, 4),
        ({"name": "recorded", "count": 4, "own": 2}, 6),
        ({"name": "tree_search", "responses_per_prompt": 1, "leaves": True}, 2),
        ({"name": "tree_search", "responses_per_prompt": 1, "leaves": False}, 1),
    ],
)
def test_answers_to_a_prompt_are_those_that_the_rollout_returns(
    rollout: dict[str, Any], answers: int
) -> None:
    """Replayed and own episodes count; a search with all leaves returns two or more."""
    assert sampled(rollout).answers == answers
