"""Value of a whole reasoning trace, by a value model."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import TYPE_CHECKING

from ratchet.components.piece import piece
from ratchet.components.types import Columns, Context, Group, Prompt, Trajectory

if TYPE_CHECKING:
    from ratchet.components.protocols import ModelEngine


def state_values(engine: ModelEngine, states: Sequence[Sequence[int]]) -> list[float]:
    """V of `objectives.step_value` for each state, the tokens of a prompt and of what is answered so far, by
    the model of the engine `engine` (built-in torch).
    """
    import torch

    from ratchet.components.inference.torch import SCORE_TOKENS
    from ratchet.components.models.reading import Reading
    from ratchet.components.pieces.objectives.step_value import step_values
    from ratchet.components.training.packing import pack

    if not states:
        return []
    rows = [Trajectory((), {"tokens": list(state)}, [False] * (len(state) - 1) + [True]) for state in states]
    found: list[float] = []
    with torch.inference_mode():
        for batch in pack([Group(Prompt("states", ()), tuple(rows))], unit="row", tokens=SCORE_TOKENS):
            values = step_values(Reading(engine.model, batch))
            found += (values * batch.mask.to(values.device)).sum(-1).tolist()
    return found


@piece(writes=("value.trace",), paper="arXiv:2406.03816", by_group=True)
def trace_value(groups: Sequence[Group], ctx: Context, *, model: str) -> Columns:
    """`value.trace`: mean over the steps (spans) of an answer of the value after the step, by the value model
    `model`; the value of the whole answer for one without spans. A wrong step lowers the value of every state
    after it.
    """
    states = [
        [list(t.inputs["tokens"][:end]) for end in ([s.stop for s in t.spans] or [len(t.mask)])]
        for g in groups
        for t in g.trajectories
    ]
    values = iter(state_values(ctx.models[model], [state for path in states for state in path]))
    means = iter([fmean(next(values) for _ in path) for path in states])
    return {"value.trace": [[next(means) for _ in g.trajectories] for g in groups]}
