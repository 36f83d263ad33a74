"""Conservative term of a turn critic: actions of the policy are worth no more than those of the data."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ratchet.components.piece import piece
from ratchet.components.pieces.objectives.turn_critic import action_values, by_row
from ratchet.components.recipes.ranges import Bool
from ratchet.components.types import Batch, Outputs, Terms

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["action_values", "conservative"]


@piece(
    reads=("transition.return",),
    readers={"action_values": "vector"},
    unit="pair",
    paper="arXiv:2303.05479",
    value_head=True,
)
def conservative(out: Outputs, batch: Batch, *, calibrated: Bool = True) -> Terms:
    """max(Q_i(s, a'), G) - Q_i(s, a), summed over the two heads i of a turn critic, one term per pair: first
    the turn of the data (s, a), second the same state with an action of the policy a'. G is the return of the
    data from s on, which estimates the value of the policy that made them (Nakamoto et al., equation 5.1,
    with one action a'): values are pushed down only as far as that. `calibrated: false` leaves G out: the
    regulariser of CQL (arXiv 2006.04779, equation 2). It is added to the regression on targets with a weight,
    the papers' alpha.

    Metrics: `gap`, the mean over the heads of Q_i(s, a') - Q_i(s, a), and `floored`, the share of heads at
    which G is larger than Q_i(s, a').
    """
    stored, taken = batch.pair(out.action_values[:, :2])
    returns = batch.pair(by_row(batch, batch["transition.return"]))[0].to(taken.device)[:, None]
    below = taken.detach() < returns
    raised: Tensor = taken.maximum(returns) if calibrated else taken
    return Terms(
        (raised - stored).sum(-1),
        {"gap": (taken - stored).detach().mean(-1), "floored": below.float().mean(-1)},
    )
