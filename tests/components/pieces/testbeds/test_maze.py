"""Testbed `maze`: no past episode crosses the gate, and a controller without noise worked by hand."""

from __future__ import annotations

from typing import Any

import pytest

from ratchet.components.errors import DataError
from ratchet.components.piece import build
from ratchet.components.types import Prompt


def rows(**options: Any) -> list[dict[str, Any]]:
    return list(build("testbed", {"name": "maze", **options})())


def walk(start: str, actions: str, **options: Any) -> tuple[list[str], float]:
    """The cells of an episode, and its return."""
    world = build("environment", {"name": "maze", **options})
    world.begin(Prompt("p", (), meta={"start": start}))
    cells, total = [start], 0.0
    for number, action in enumerate(actions, 1):
        step = world.step(action)
        total += step.reward
        cells += [message["content"] for message in step.observation.messages] or ["goal"]
        assert number == len(actions) or not (step.done or step.truncated), "all of the log is used"
    return cells, total


def test_every_cell_but_the_goal_is_a_start_of_one_split() -> None:
    found = rows(held_out="a1,d2", seed=4)
    test, train = ([r for r in found if r["split"] == split] for split in ("test", "train"))
    assert [row["meta"] for row in test] == [{"start": "a1"}, {"start": "d2"}]
    assert len({row["id"] for row in found}) == len(found) == 12
    for row in found:
        assert row["prompt"] == [{"role": "user", "content": row["meta"]["start"]}]
    assert {len(row["meta"]["log"]) for row in train} == {30} and found == rows(held_out="a1,d2", seed=4)
    assert found != rows(held_out="a1,d2", seed=5)


def test_no_past_episode_crosses_the_gate() -> None:
    """West of c3 nothing is paid; the way to the gate and the way from it are in the log, but in no episode
    together.
    """
    to_gate = from_gate = 0
    for row in rows(log=40, seed=2):
        start = row["meta"]["start"]
        for actions in row["meta"].get("log", ()):
            cells, total = walk(start, actions)
            west, east = ({cell[0] for cell in cells} & set(side) for side in ("ab", "de"))
            assert not (west and (east or total)), (start, actions)
            assert "c3" not in cells[1:-1], "the gate is the end of an episode"
            to_gate += bool(west) and "c3" in cells
            from_gate += start == "c3" and total > 0
    assert to_gate > 40 and from_gate > 5


def test_a_controller_without_noise_worked_by_hand() -> None:
    """Three cells in a row: west of the gate b1 one walks there and back, east of it to the goal."""
    found = {
        row["meta"]["start"]: set(row["meta"]["log"])
        for row in rows(layout="..G", gate="b1", held_out="a1", moves=4, noise=0.0)
        if row["split"] == "train"
    }
    assert found == {"b1": {"we", "e"}}


def test_noise_is_the_share_of_random_moves() -> None:
    """On a straight way to the goal, with way-points on both sides, random moves turn back: fewer episodes
    arrive.
    """
    options: dict[str, Any] = {"layout": "X..G/....", "gate": "a2", "held_out": "b2", "log": 400}

    def arrived(noise: float) -> float:
        logs = [row["meta"]["log"] for row in rows(**options, noise=noise) if row["meta"]["start"] == "b1"]
        (log,) = logs
        return sum(len(actions) for actions in log) / len(log)

    assert arrived(0.0) < arrived(0.5) < arrived(1.0)


@pytest.mark.parametrize("options", [{"gate": "c1"}, {"held_out": "a1,z9"}, {"held_out": "d1"}])
def test_a_cell_that_is_no_floor_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(DataError, match="is no floor"):
        rows(**options)
