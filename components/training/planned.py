"""Done is planned: what a stage that learns or samples asserts of its work before any of it is published."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ratchet.components.errors import DataError, TrainingError
from ratchet.components.types import Group

if TYPE_CHECKING:
    from ratchet.components.protocols import Learner

AGAIN = "nothing is published. Remove the stage's checkpoint to start it again"


def all_steps(learners: Mapping[str, Learner], done: int, planned: int, updates: int) -> None:
    """Raise `TrainingError` unless as many steps were done as planned, and every learner took the `updates` of each of its roles."""
    if done != planned:
        raise TrainingError(f"{done} steps were done where {planned} were planned; {AGAIN}")
    for learner in learners.values():
        roles = [role for role, other in learners.items() if other is learner]
        if learner.steps != updates * len(roles):
            raise TrainingError(f"the optimiser of {', '.join(roles)} took {learner.steps} updates where {updates * len(roles)} belong to "
                                f"{done} steps; {AGAIN}")


def all_answered(groups: Sequence[Group], options: Mapping[str, Any]) -> Sequence[Group]:
    """`groups`, when they are all that a rollout was to bring: `prompts_per_round` of them, each with `responses_per_prompt` answers
    where the piece has such an option. A `DataError` otherwise."""
    piece, planned = options["rollout"]["name"], options["prompts_per_round"]
    if len(groups) != planned:
        raise DataError(f"{piece}: {len(groups)} prompts were answered where {planned} were planned; neither it nor "
                        f"{options['prompts']['name']!r} may leave one out")
    each = options["rollout"].get("responses_per_prompt")
    short = [g for g in groups if each is not None and len(g.trajectories) != each]
    if short:
        raise DataError(f"{piece}: {sum(len(g.trajectories) for g in groups)} responses to {planned} prompts where {planned * each} were planned; "
                        f"the first that has other than {each} is {short[0].prompt.id!r} with {len(short[0].trajectories)}. A response that failed "
                        "keeps its place, with stop: error")
    return groups
