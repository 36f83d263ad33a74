"""Pairs by an ordered list of signals."""

from collections import Counter

import pytest

from ratchet.components.errors import RecipeError
from ratchet.components.piece import build
from ratchet.components.types import Context, Group, Prompt, Trajectory


def group(**columns):
    (number,) = {len(column) for column in columns.values()}
    rows = tuple(Trajectory(({"role": "assistant", "content": f"{i}"},), mask=[True]) for i in range(number))
    return Group(Prompt("p", ()), rows, columns)


def chosen(groups, **options):
    ctx = Context()
    made = build("select", {"name": "hierarchy", "signals": ["a", "b"], **options})(groups, ctx)
    return [tuple(t.text for t in pair.trajectories) for pair in made], ctx.counts


def test_the_first_signal_that_differs_by_its_margin_decides():
    """Deviation of b: 1.5 over 0, 1, 4, 3 is 1.58; 0 against 1 of b is no difference, 1 against 4 is one."""
    pairs, counts = chosen([group(a=[1.0, 1.0, 1.0, 2.0], b=[0.0, 1.0, 4.0, 3.0])])
    assert pairs == [("2", "0"), ("3", "0"), ("2", "1"), ("3", "1"), ("3", "2")]
    assert counts == Counter(
        {"pairs decided by a": 3, "pairs decided by b": 2, "pairs that no signal decides": 1}
    )


def test_any_difference_of_the_first_signal_decides_by_default():
    """Deviation of a over 0, 0.1, 10: 4.69, which 0.1 is far below; b would say the opposite."""
    pairs, counts = chosen([group(a=[0.0, 0.1, 10.0], b=[9.0, 0.0, 0.0])])
    assert pairs == [("1", "0"), ("2", "0"), ("2", "1")] and counts["pairs decided by a"] == 3


def test_labels_do_not_depend_on_a_signals_unit():
    a, b = [0.1, 0.5, 0.1, 0.3], [5.0, 1.0, 9.0, 2.0]
    assert chosen([group(a=a, b=b)]) == chosen([group(a=a, b=[1000 * x for x in b])])
    assert chosen([group(a=a, b=b)], margins=[1.0, 0.0]) == chosen(
        [group(a=[x / 64 for x in a], b=b)], margins=[1.0, 0.0]
    )


def test_margins_are_one_per_signal():
    with pytest.raises(RecipeError, match="one margin per signal"):
        chosen([group(a=[1.0, 2.0], b=[1.0, 2.0])], margins=[0.0])
