"""Environment `maze`: an episode worked by hand, and the returns of known policies."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from ratchet.components.errors import DataError
from ratchet.components.piece import build
from ratchet.components.pieces.environments.maze import distances, name, read
from ratchet.components.types import Observation, Prompt, Step


def world(start: str, **options: Any) -> Any:
    made = build("environment", {"name": "maze", **options})
    assert made.begin(Prompt("p", (), meta={"start": start})) == Observation()
    return made


def at(cell: str, *, valid: bool = True) -> Observation:
    return Observation(({"role": "user", "content": cell},), valid)


def test_an_episode_worked_by_hand() -> None:
    """A wall in the middle of the first row, and the goal behind it."""
    made = world("a1", layout=".XG/...", moves=9)
    steps = [made.step(action) for action in ("e", "n", "x", " s\n", "w", "e", "e", "n")]
    assert steps == [
        Step(at("a1"), 0.0),
        Step(at("a1"), 0.0),
        Step(at("a1", valid=False), 0.0),
        Step(at("a2"), 0.0),
        Step(at("a2"), 0.0),
        Step(at("b2"), 0.0),
        Step(at("c2"), 0.0),
        Step(Observation(), 1.0, done=True),
    ]
    assert made.score() == {"solved": 1.0, "moves": 8.0, "blocked": 3.0, "errors": 1.0}


def test_the_last_move_is_truncated_unless_it_enters_the_goal() -> None:
    cut = world("a1", layout="..G", moves=2)
    assert [cut.step("e"), cut.step("w")] == [Step(at("b1"), 0.0), Step(at("a1"), 0.0, truncated=True)]
    assert cut.score()["solved"] == 0.0
    entered = world("a1", layout="..G", moves=2)
    assert [entered.step("e"), entered.step("e")][1] == Step(Observation(), 1.0, done=True)


def test_the_prompt_says_the_start_before_the_option_does() -> None:
    made = build("environment", {"name": "maze", "layout": "..G", "start": "b1"})
    made.begin(Prompt("p", ()))
    assert made.step("e").done
    made.begin(Prompt("p", (), meta={"start": "a1"}))
    assert not made.step("e").done


@pytest.mark.parametrize("layout", ["...", "G.G", "..G/.", "..?G", "." * 9 + "G", "./" * 9 + "G"])
def test_a_layout_that_is_no_maze_is_refused(layout: str) -> None:
    with pytest.raises(DataError, match="expected a layout"):
        build("environment", {"name": "maze", "layout": layout})


@pytest.mark.parametrize("start", ["b1", "c1", "d1", "a3", ""])
def test_a_start_in_a_wall_at_the_goal_or_outside_is_refused(start: str) -> None:
    with pytest.raises(DataError, match="out of a1, a2, b2, c2"):
        world(start, layout=".XG/...")


def solved(start: str, actions: Sequence[str], **options: Any) -> bool:
    made = world(start, **options)
    return any(made.step(action).done for action in actions)


def test_random_moves_reach_the_goal_as_often_as_by_hand() -> None:
    """Two cells from the goal, p_t(a) = 1/4 p_{t-1}(b) + 3/4 p_{t-1}(a) and p_t(b) = 1/4 + 1/4 p_{t-1}(a) +
    1/2 p_{t-1}(b): in three moves 9/64.
    """
    plans = itertools.product("nesw", repeat=3)
    assert sum(solved("a1", plan, layout="..G", moves=3) for plan in plans) == 9


def test_the_default_maze_takes_seven_moves_from_corner_to_corner() -> None:
    floor, goal = read("..XG./..X../.....")
    far = {name(cell): moves for cell, moves in distances(floor, goal).items()}
    assert len(far) == 13 and (far["a1"], far["c3"], far["d1"]) == (7, 3, 0) and max(far.values()) == 7
    assert solved("a1", "sseeenn") and not solved("a1", "sseeen")
