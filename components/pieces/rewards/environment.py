"""Rewards of episodes, as their environment gave them."""

from __future__ import annotations

from ratchet.components.errors import DataError
from ratchet.components.piece import each, piece
from ratchet.components.types import Prompt, Trajectory


@piece(writes=("reward.environment", "reward.environment.status"), paper="arXiv:2502.01600")
@each
def environment(prompt: Prompt, trajectory: Trajectory) -> float | None:
    """Return of the episode: the sum of its turns' rewards. Skipped if the environment gave none."""
    given = [span.reward for span in trajectory.spans if span.kind == "act" and span.reward is not None]
    return sum(given) if given else None


@piece(writes=("reward.solved", "reward.solved.status"), paper="arXiv:2502.01600")
@each
def solved(prompt: Prompt, trajectory: Trajectory) -> float:
    """1 if the environment's measure `solved` says so, else 0. Failed for a trajectory that is no episode, or
    whose environment has no such measure.
    """
    return measure(trajectory, "solved")


@piece(writes=("reward.first", "reward.first.status"), paper="arXiv:2507.14295")
@each
def first(prompt: Prompt, trajectory: Trajectory) -> float:
    """1 if the first attempt was right (Succ@1), else 0: the environment's measure `first`."""
    return measure(trajectory, "first")


@piece(writes=("reward.last", "reward.last.status"), paper="arXiv:2409.12917")
@each
def last(prompt: Prompt, trajectory: Trajectory) -> float:
    """1 if the last attempt was right, else 0: the environment's measure `last`."""
    return measure(trajectory, "last")


@piece(writes=("reward.gain", "reward.gain.status"), paper="arXiv:2409.12917")
@each
def gain(prompt: Prompt, trajectory: Trajectory) -> float:
    """1 if only the last attempt was right, -1 if only the first, else 0. Its mean is the gain in accuracy
    from the first to the last attempt (SCoRe, section 3: the difference of t1 and t2).
    """
    return measure(trajectory, "last") - measure(trajectory, "first")


def measure(trajectory: Trajectory, name: str) -> float:
    """A measure of the episode's environment by name. `DataError` if there is none."""
    score = trajectory.meta.get("score", {})
    if name not in score:
        raise DataError(
            f"the trajectory has no measure {name!r} (available: {sorted(score)}); use the rollout "
            "`episodes` with an environment that gives it"
        )
    return float(score[name])
