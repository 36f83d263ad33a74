"""Cost of an answer: the whole tree of a search, an answer's own tokens without one."""

from __future__ import annotations

from ratchet.components.pieces.measures.generated import generated, values
from ratchet.components.types import Context, Group, Prompt, Trajectory


def test_an_answer_of_a_search_costs_its_tree() -> None:
    own = Trajectory((), {"tokens": [1, 2, 3]}, [False, True, True])
    found = Trajectory((), {"tokens": [1, 2]}, [False, True], meta={"generated": 16, "valued": 7})
    group = Group(Prompt("p", ()), (own, found))
    assert generated([group], Context()) == [[2.0, 16.0]] and values([group], Context()) == [[0.0, 7.0]]
