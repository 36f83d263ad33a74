"""Answers without personal data."""

from __future__ import annotations

from collections.abc import Sequence

from ratchet.components.data.personal_data import scrubbed
from ratchet.components.piece import piece
from ratchet.components.types import Context, Group


@piece()
def without_personal_data(groups: Sequence[Group], ctx: Context) -> list[Group]:
    """The groups without the answers that hold an e-mail address, a link, a telephone number or an @handle.
    Models invent them, and data validation refuses to train on them. A prompt whose answers all do is left
    out.
    """
    kept: list[Group] = []
    for group in groups:
        clean = [i for i, t in enumerate(group.trajectories) if not scrubbed(t.text)[1]]
        ctx.counts["answers with personal data"] += len(group.trajectories) - len(clean)
        if clean:
            kept.append(group.take(clean))
    return kept
