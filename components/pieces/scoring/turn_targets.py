"""Scoring piece `turn_targets`: one-step targets of a turn critic, by its target network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ratchet.components.errors import ContractError
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Share
from ratchet.components.types import Columns, Context, Group

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from ratchet.components.models.reading import Reading
    from ratchet.components.protocols import ModelEngine


@piece(
    reads=("transition.reward", "transition.done"),
    writes=("target.q_1", "target.q_2", "target.v_1", "target.v_2"),
    paper="arXiv:2402.19446",
)
def turn_targets(
    groups: Sequence[Group], ctx: Context, *, model: str = "critic_target", gamma: Share = 0.95
) -> Columns:
    """Targets of the first trajectory of each group of `turn_replay`, for each of the two heads i (Zhou et
    al., equations 1 and 2): of Q_i(s, a) the turn's reward plus `gamma` times V_i(s'), without the latter in
    an episode's last turn; of V_i(s) the value Q_i(s, a') of the second trajectory's action. V_i and Q_i are
    those of `model`; as `fresh`, they are those of the moment. 0 for the second trajectory.

    `ContractError` for a group that is no pair of a stored and a sampled turn.
    """
    from ratchet.components.pieces.objectives.turn_critic import TARGETS, action_values, next_values

    for group in groups:
        if len(group.trajectories) != 2:
            raise ContractError(
                f"turn_targets: prompt {group.prompt.id!r}: expected a stored and a sampled turn, got "
                f"{len(group.trajectories)} trajectories; use the selector turn_replay with `stored: true`"
            )
    following, actions = read_turns(groups, ctx.models[model], (next_values, action_values))
    columns: dict[str, list] = {name: [] for name in TARGETS}
    for number, group in enumerate(groups):
        reward, done = (float(group.columns[f"transition.{name}"][0]) for name in ("reward", "done"))
        stored, sampled = 2 * number, 2 * number + 1
        found = [reward + (0.0 if done else gamma * value) for value in following[stored]]
        found += actions[sampled]
        for name, value in zip(TARGETS, found, strict=True):
            columns[name].append([value, 0.0])
    return columns


def read_turns(
    groups: Sequence[Group], engine: ModelEngine, readers: Sequence[Callable[[Reading], Tensor]]
) -> list[list[list[float]]]:
    """What each reader finds in the engine's model: a list of numbers for every trajectory, in order."""
    import torch

    from ratchet.components.inference.torch import SCORE_TOKENS
    from ratchet.components.models.reading import Reading
    from ratchet.components.training.packing import pack

    found: list[list[list[float]]] = [[] for _ in readers]
    with torch.inference_mode():
        for batch in pack(groups, unit="group", tokens=SCORE_TOKENS):
            reading = Reading(engine.model, batch)
            for rows, reader in zip(found, readers, strict=True):
                rows += reader(reading).tolist()
    return found
