"""Post-conditions of training and rollout stages, checked before the output is published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ratchet.components.errors import DataError, TrainingError
from ratchet.components.types import Group

if TYPE_CHECKING:
    from ratchet.components.protocols import Learner

UNPUBLISHED = "the output was not published. Remove the stage's checkpoint to restart it"


def check_step_counts(learners: Mapping[str, Learner], done: int, planned: int, updates: int) -> None:
    """Raise `TrainingError` unless all planned steps ran and every learner made `updates` optimizer updates
    per role.
    """
    if done != planned:
        raise TrainingError(f"{done} of {planned} planned steps ran; {UNPUBLISHED}")
    for learner in learners.values():
        roles = [role for role, other in learners.items() if other is learner]
        if learner.steps != updates * len(roles):
            raise TrainingError(
                f"{', '.join(roles)}: {learner.steps} optimizer updates after {done} steps "
                f"(expected {updates * len(roles)}); {UNPUBLISHED}"
            )


def check_rollout(groups: Sequence[Group], options: Mapping[str, Any]) -> Sequence[Group]:
    """Return `groups` if the rollout is complete: `prompts_per_round` groups, each with at least
    `responses_per_prompt` answers if the piece has that option (a search tree may have more leaves).
    `DataError` otherwise.
    """
    piece, planned = options["rollout"]["name"], options["prompts_per_round"]
    if len(groups) != planned:
        raise DataError(
            f"rollout {piece!r} returned {len(groups)} of {planned} prompts. Rollouts and prompt samplers "
            "(here "
            f"{options['prompts']['name']!r}) must return every prompt; mark failures with stop='error'"
        )
    each = options["rollout"].get("responses_per_prompt")
    short = [g for g in groups if each is not None and len(g.trajectories) < each]
    if short:
        raise DataError(
            f"rollout {piece!r} returned {sum(len(g.trajectories) for g in groups)} of {planned * each} "
            f"responses to {planned} prompts: "
            f"{short[0].prompt.id!r} has {len(short[0].trajectories)} (expected {each}). Keep failed "
            "responses and mark them "
            "with stop='error'"
        )
    return groups
