"""Environment and testbed `doors`: an episode worked by hand, and the declared expected returns."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from ratchet.components.errors import DataError
from ratchet.components.piece import build
from ratchet.components.types import Context, Group, Observation, Prompt, Step, Trajectory


def world(**options: Any) -> Any:
    made = build("environment", {"name": "doors", **options})
    assert made.begin(Prompt("p", ())) == Observation()
    return made


def room(number: int, *, valid: bool = True) -> Observation:
    return Observation(({"role": "user", "content": str(number)},), valid)


def test_an_episode_worked_by_hand() -> None:
    made = world(turns=8)
    steps = [made.step(action) for action in ("b", " c\n", "a", "b", "a", "B", "b", "c")]
    assert steps == [
        Step(room(2), 0.0),
        Step(room(3), 0.0),
        Step(room(1), 1.0),
        Step(room(2), 0.0),
        Step(room(1), 0.0),
        Step(room(1, valid=False), 0.0),
        Step(room(2), 0.0),
        Step(Observation(), 0.0, done=True),
    ]
    assert made.score() == {"exits": 1.0, "onward": 6 / 8, "errors": 1.0}


def test_a_single_room_is_left_by_every_right_door() -> None:
    made = world(right="c", turns=3)
    assert [made.step(action).reward for action in ("c", "b", "c")] == [1.0, 0.0, 1.0]
    for wrong in ("", "abcd", "a" * 10):
        with pytest.raises(DataError, match="1 to 9 letters"):
            world(right=wrong)


def test_exits_is_the_return_and_0_for_an_episode_without_any_reward() -> None:
    found = tuple(Trajectory((), meta={"score": score}) for score in ({"exits": 2.0}, {"exits": 0.0}, {}))
    columns = build("annotate", {"name": "rewards.exits"})([Group(Prompt("p", ()), found)], Context())
    assert columns["reward.exits"] == [[2.0, 0.0, None]]
    assert columns["reward.exits.status"][0][2].startswith("failed")


@cache
def demonstrated(turns: int, at: int, rooms: int, skill: float) -> float:
    """R of the testbed's docstring."""
    if not turns:
        return 0.0
    back = demonstrated(turns - 1, 1, rooms, skill)
    return (
        skill * (1 + back if at == rooms else demonstrated(turns - 1, at + 1, rooms, skill))
        + (1 - skill) * back
    )


def test_returns_of_the_demonstrator_and_of_the_right_doors_are_the_declared_ones() -> None:
    assert demonstrated(6, 1, 3, 0.5) == pytest.approx(0.328, abs=1e-3)
    rows = list(build("testbed", {"name": "doors", "size": 3000, "seed": 2})())
    assert {len(row["completion"]) for row in rows} == {11} and len(
        {r["prompt"][0]["content"] for r in rows}
    ) == 3000
    exits, rights = [], 0
    for row in rows:
        made = world()
        said = [m["content"] for m in row["completion"]]
        for action, answer in zip(said[::2], [*said[1::2], None], strict=True):
            shown = made.step(action).observation.messages
            assert (shown[0]["content"] if shown else None) == answer
        exits.append(made.score()["exits"])
        rights += made.onward
    assert sum(exits) / 3000 == pytest.approx(0.328, abs=0.03) and rights / 18000 == pytest.approx(
        0.5, abs=0.01
    )
    best = world()
    assert [best.step("bca"[i % 3]).reward for i in range(6)] == [0, 0, 1, 0, 0, 1]
