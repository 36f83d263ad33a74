"""Environment and testbed `hidden_numbers`: an episode worked by hand, and the declared expected returns."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from ratchet.components.errors import DataError
from ratchet.components.piece import build
from ratchet.components.types import Observation, Prompt, Step

YES, NO = ({"role": "user", "content": "Yes."},), ({"role": "user", "content": "No."},)


def world(name: str = "p", **options: Any) -> Any:
    made = build("environment", {"name": "hidden_numbers", **options})
    assert made.begin(Prompt(name, ())) == Observation()
    return made


def test_an_episode_worked_by_hand() -> None:
    made = world(turns=6)
    made.hidden = ["2", "2", "1", "3", "3", "3"]
    steps = [made.step(action) for action in ("1", " 2\n", "1", "1", "4", "2")]
    assert steps == [
        Step(Observation(NO), 0.0),
        Step(Observation(YES), 1.0),
        Step(Observation(NO), 0.0),
        Step(Observation(NO), 0.0),
        Step(Observation(NO, valid=False), 0.0),
        Step(Observation(), 1.0, done=True),
    ]
    assert made.score() == {"hits": 2.0, "repeats": 1.0, "errors": 1.0}, "after Yes. a 1 is no repeat"


def test_the_numbers_depend_on_the_prompt_only_and_are_uniform() -> None:
    drawn = [number for i in range(400) for number in world(f"p{i}").hidden]
    assert world("p7").hidden == world("p7").hidden
    assert {n: round(drawn.count(n) / len(drawn), 1) for n in set(drawn)} == {"1": 0.3, "2": 0.3, "3": 0.3}
    with pytest.raises(DataError, match="at most 9, got 10"):
        build("environment", {"name": "hidden_numbers", "numbers": 10})


@cache
def demonstrated(turns: int, ruled_out: bool, numbers: int, repeat: float) -> float:
    """D of the testbed's docstring."""
    if not turns:
        return 0.0
    p = (1 - repeat if ruled_out else 1) / numbers
    rest = (demonstrated(turns - 1, after, numbers, repeat) for after in (False, True))
    return p * (1 + next(rest)) + (1 - p) * next(rest)


@cache
def optimum(turns: int, left: int, numbers: int) -> float:
    """B of the testbed's docstring."""
    if not turns:
        return 0.0
    after = optimum(turns - 1, left - 1, numbers) if left > 1 else 0.0
    return (1 + optimum(turns - 1, numbers, numbers)) / left + (1 - 1 / left) * after


def test_returns_of_the_demonstrator_and_of_excluding_guesses_are_the_declared_ones() -> None:
    assert (demonstrated(5, False, 3, 0.5), optimum(5, 3, 3)) == pytest.approx((1.16, 2.325), abs=1e-3)
    rows = list(build("testbed", {"name": "hidden_numbers", "size": 3000, "seed": 2})())
    assert len(rows[0]["completion"]) == 9
    replayed = []
    for row in rows:
        made = world(row["id"])
        said = [m["content"] for m in row["completion"]]
        for action, answer in zip(said[::2], [*said[1::2], None], strict=True):
            shown = made.step(action).observation.messages
            assert (shown[0]["content"] if shown else None) == answer
        replayed.append(made.score()["hits"])
    assert sum(replayed) / len(replayed) == pytest.approx(1.16, abs=0.06)
    excluding = []
    for i in range(2000):
        made, left = world(f"q{i}"), 1
        for _ in range(5):
            left = 1 if made.step(str(left)).reward else left + 1
        excluding.append(made.score()["hits"])
        assert made.score()["repeats"] == 0.0
    assert sum(excluding) / len(excluding) == pytest.approx(2.325, abs=0.06)
