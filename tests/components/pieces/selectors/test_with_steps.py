"""Answers with a marked step are kept, and groups without one are dropped."""

from __future__ import annotations

from collections import Counter

from ratchet.components.pieces.selectors.with_steps import with_steps
from ratchet.components.types import Context, Group, Prompt, Trajectory


def test_answers_without_a_marked_step_are_dropped() -> None:
    def group(name: str, *rows: list[float]) -> Group:
        answers = tuple(Trajectory(({"role": "assistant", "content": str(i)},)) for i in range(len(rows)))
        return Group(Prompt(name, ()), answers, {"known": list(rows)})

    ctx = Context(counts=Counter())
    kept = with_steps(
        [group("a", [0.0, 1.0], [0.0], [0.5]), group("b", [0.0], [0.0, -1.0])], ctx, column="known"
    )
    assert [(g.prompt.id, [t.text for t in g.trajectories]) for g in kept] == [("a", ["0", "2"])]
    assert kept[0].columns == {"known": [[0.0, 1.0], [0.5]]}
    assert ctx.counts["answers without a marked step"] == 3
