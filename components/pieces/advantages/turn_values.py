"""Advantages of turns by a critic: value of the action minus value of the state."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.piece import piece
from ratchet.components.pieces.scoring.turn_targets import read_turns
from ratchet.components.types import Columns, Context, Group


@piece(writes=("advantages",), paper="arXiv:2402.19446")
def turn_values(groups: Sequence[Group], ctx: Context, *, model: str = "critic") -> Columns:
    """min(Q_1, Q_2)(s, a) - min(V_1, V_2)(s) of each trajectory's turn, which is its loss mask, by the turn
    critic `model` (Zhou et al., section 4.3, with two of each as in the released code). All tokens of the
    turn share it. Neither standardised nor clipped.
    """
    from ratchet.components.pieces.objectives.turn_critic import action_values, state_values

    q, v = read_turns(groups, ctx.models[model], (action_values, state_values))
    rows = iter([min(action) - min(state) for action, state in zip(q, v, strict=True)])
    return {"advantages": [[next(rows) for _ in group.trajectories] for group in groups]}
