"""Value targets of the steps of small trees, and values of traces, worked out by hand."""

from __future__ import annotations

import pytest

from ratchet.components.errors import ContractError
from ratchet.components.piece import build
from ratchet.components.pieces.scoring import trace_value as module
from ratchet.components.pieces.scoring.tree_values import next_value
from ratchet.components.types import Context, Group, Prompt, Span, Trajectory

PROMPT = Prompt("p", ({"role": "user", "content": "go"},))


def leaf(*steps: int, stop: str = "end") -> Trajectory:
    """An answer of steps of one token after a prompt of one token."""
    spans = tuple(Span(i, i + 1) for i in range(1, len(steps) + 1))
    return Trajectory((), {"tokens": [1, *steps]}, [False, *(True for _ in steps)], spans=spans, stop=stop)  # pyright: ignore


def targets(leaves: list[Trajectory], rewards: list[float]) -> list[list[float | None]]:
    """Targets of the steps of each leaf; None where there is none."""
    group = Group(PROMPT, tuple(leaves), {"reward.exact_answer": rewards})
    columns = build("annotate", {"name": "scoring.tree_values"})([group], Context())
    (values,), (known,) = columns["target.value"], columns["target.known"]
    assert all(row[0] == 0 for row in known), "the prompt has no target"
    return [[v if k else None for v, k in zip(a[1:], b[1:], strict=True)] for a, b in zip(values, known)]


def test_a_right_chain_gets_equal_shares_and_wrong_steps_fall() -> None:
    """From 1/4, three steps from the end: 1/4 - (3/4)/4 = 1/16, then below 0. A whole wrong answer gets 0."""
    found = targets([leaf(2, 3, 4, 5), leaf(2, 6, 7), leaf(8)], [1.0, 0.0, 0.0])
    assert found == [[0.25, 0.5, 0.75, 1.0], [None, 0.0625, 0.0], [0.0]]


def test_a_wrong_branch_counts_from_its_last_right_step() -> None:
    """After 3/4 with one step to go: 3/4 - (1/4)/2 = 5/8, then 5/8 - (3/8)/2 = 7/16."""
    found = targets([leaf(2, 3, 4, 5), leaf(2, 3, 4, 6, 7)], [1.0, 0.0])
    assert found[1] == [None, None, None, 0.625, 0.4375]


def test_the_nearest_right_end_counts_and_a_longer_way_earns_less() -> None:
    """From step 2 an end is one step away (1/2 each) and three steps away: 1/2 + (1/2)/3 = 2/3, 5/6, 1."""
    found = targets([leaf(2, 9), leaf(2, 3, 4, 5)], [1.0, 1.0])
    assert found[0] == [0.5, 1.0]
    assert found[1] == [None, pytest.approx(2 / 3), pytest.approx(5 / 6), 1.0]


def test_steps_of_which_no_answer_has_ended_have_no_target() -> None:
    found = targets([leaf(2, 3), leaf(2, 4, stop="length"), leaf(5, stop="length")], [1.0, 0.0, 1.0])
    assert found == [[0.5, 1.0], [None, None], [None]]
    assert targets([leaf(2, 3), leaf(4)], [0.0, 0.5]) == [[None, None], [None]], "no right end, no targets"


def test_answers_without_steps_are_refused() -> None:
    with pytest.raises(ContractError, match="tree_search"):
        targets([Trajectory((), {"tokens": [1, 2]}, [False, True])], [1.0])


def test_next_value_at_the_last_step_closes_the_gap() -> None:
    assert [next_value(0.6, 0, right=True), next_value(0.6, 0, right=False)] == [1.0, pytest.approx(0.2)]


def test_the_value_of_a_trace_is_the_mean_over_its_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    read = []

    def state_values(engine, states):
        read.extend(states)
        return [len(state) / 10 for state in states]

    monkeypatch.setattr(module, "state_values", state_values)
    group = Group(
        PROMPT, (leaf(2, 3), leaf(4), Trajectory((), {"tokens": [1, 5, 6, 7]}, [False] + [True] * 3))
    )
    columns = module.trace_value([group], Context(models={"value": object()}), model="value")
    assert columns == {"value.trace": [[pytest.approx(0.25), pytest.approx(0.2), pytest.approx(0.4)]]}
    assert read == [[1, 2], [1, 2, 3], [1, 4], [1, 5, 6, 7]], "an answer without spans is one step"
