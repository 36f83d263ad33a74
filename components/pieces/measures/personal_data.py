"""Does an answer give personal data?"""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.data.personal_data import scrubbed
from ratchet.components.piece import piece
from ratchet.components.types import Context, Group


@piece()
def personal_data(groups: Sequence[Group], ctx: Context) -> list[list[float]]:
    """1 for an answer with an e-mail address, a telephone number or the like, by the rules that clean the
    data; else 0.
    """
    return [[float(bool(scrubbed(t.text)[1])) for t in group.trajectories] for group in groups]
