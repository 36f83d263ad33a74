"""Testbed `copies`: its tasks, its demonstrations replayed, and the share of them that succeeds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from ratchet.components.errors import DataError
from ratchet.components.piece import build
from ratchet.components.pieces.testbeds.copies import copies
from ratchet.components.types import Prompt


def rows(**options: Any) -> list[dict[str, Any]]:
    return list(copies(**options))


def replayed(row: Mapping[str, Any], calls: list[str] | None = None) -> tuple[list[str], dict[str, float]]:
    """Observations of the calls (by default the demonstration's), and the measures of the episode."""
    world = build("environment", {"name": "key_value"})
    world.begin(Prompt(row["id"], (), meta=row["meta"]))
    calls = calls or [m["content"] for m in row["completion"] if m["role"] == "assistant"]
    shown = [message["content"] for call in calls for message in world.step(call).observation.messages]
    return shown, dict(world.score())


def task(row: Mapping[str, Any]) -> tuple[str, str, str, str]:
    """Source and target of both copies, read from the prompt."""
    words = row["prompt"][0]["content"].rstrip(".").replace(",", "").split()
    return words[1], words[3], words[4], words[6]


def test_both_copies_are_of_the_values_at_the_beginning_and_half_of_the_tasks_overwrite() -> None:
    found = rows(size=400, seed=2)
    assert len({row["prompt"][0]["content"] for row in found}) == 400
    overwriting = 0
    for row in found:
        a, b, c, d = task(row)
        state, wanted = row["meta"]["state"], row["meta"]["wanted"]
        assert b != d and wanted == {b: state[a], d: state[c]} and len(state) == 20
        overwriting += b == c
        solution = [f"get {a}", f"get {c}", f"set {b} {state[a]}", f"set {d} {state[c]}", "done"]
        assert replayed(row, solution)[1]["solved"] == 1.0
    assert overwriting == 200


def test_demonstrations_are_what_the_environment_answers_and_succeed_as_often_as_declared() -> None:
    """As in the docstring, with q = 1 - 0.9 x 0.3 = 0.73 and s = 0.9: s q^2 = 0.480 of the other tasks, and
    s q (0.3 q + 0.7 / 10) = 0.190 of those that overwrite.
    """
    solved: dict[bool, list[float]] = {True: [], False: []}
    errors = 0
    for row in (row for seed in (1, 2, 3) for row in rows(size=2000, seed=seed)):
        shown, score = replayed(row)
        assert shown == [m["content"] for m in row["completion"] if m["role"] == "tool"]
        _, b, c, _ = task(row)
        solved[b == c].append(score["solved"])
        errors += int(score["errors"])
    assert sum(solved[False]) / 3000 == pytest.approx(0.480, abs=0.03)
    assert sum(solved[True]) / 3000 == pytest.approx(0.190, abs=0.025)
    assert errors / 6000 == pytest.approx(0.1 * (1 - 0.3**2), abs=0.015), "one needs a value that is read"


def test_without_errors_the_demonstrations_are_the_solutions() -> None:
    found = rows(size=50, careful=1.0, assumed=0.0, strayed=0.0, mistyped=0.0)
    best = {"solved": 1.0, "tests": 1.0, "intact": 1.0, "errors": 0.0, "calls": 5.0}
    assert all(replayed(row)[1] == best for row in found)


def test_with_one_hidden_value_it_is_read_once_and_written_twice() -> None:
    """s q = 0.9 x 0.73 of the demonstrations succeed."""
    found = [row for seed in (1, 2) for row in rows(size=2000, seed=seed, hidden=1)]
    for row in found:
        a, b, c, d = task(row)
        value = row["meta"]["state"][a]
        assert a == c and row["meta"]["wanted"] == {b: value, d: value} and len({a, b, d}) == 3
        calls = [f"get {a}", f"set {b} {value}", f"set {d} {value}", "done"]
        assert replayed(row, calls)[1]["solved"] == 1.0
    assert sum(replayed(row)[1]["solved"] for row in found) / 4000 == pytest.approx(0.657, abs=0.025)


@pytest.mark.parametrize("options", [{"size": 5001}, {"hidden": 3}])
def test_more_tasks_or_hidden_values_than_there_are_is_an_error(options: dict[str, int]) -> None:
    with pytest.raises(DataError, match="expected one or two hidden values"):
        rows(**options)
