"""Pieces: description from source, strict checks of options, defaults."""

from __future__ import annotations

import importlib
import os
import re
from pathlib import Path
from typing import Any

import pytest

from ratchet.components.errors import RecipeError
from ratchet.components.piece import SLOTS, build, catalogue, describe, each, resolve
from ratchet.components.types import Group, Prompt, Trajectory


def test_unknown_piece_names_the_nearest() -> None:
    with pytest.raises(RecipeError, match=r"'clp'.*'clip'"):
        resolve("objective", {"name": "clp"})


def test_unknown_option_names_the_nearest() -> None:
    with pytest.raises(RecipeError, match=r"'hig'.*'high'"):
        resolve("objective", {"name": "clip", "hig": 0.3})


def test_wrong_kind_of_value() -> None:
    with pytest.raises(RecipeError, match=r"objective\.low.*'much'"):
        resolve("objective", {"name": "clip", "low": "much"})


def test_column_placeholders_are_filled_from_options() -> None:
    piece = describe("annotate", "scoring.logprobs")
    assert "logprobs.reference" in piece.named("writes", {"model": "reference"})


def test_a_piece_written_while_a_process_runs_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ratchet.components.piece.ROOT", tmp_path)
    folder = tmp_path / "pieces" / "schedules"
    folder.mkdir(parents=True)
    for number, name in enumerate(["first", "second"], 1):
        (folder / f"{name}.py").write_text(
            f'@piece()\ndef {name}(step: int) -> float:\n    """A number."""\n'
        )
        os.utime(folder, (number, number))  # two files within one tick of the clock
        assert len(catalogue("schedule")) == number and describe("schedule", name).doc == "A number."
    (folder / "first.py").unlink()
    os.utime(folder, (3, 3))
    assert list(catalogue("schedule")) == ["second"]


@pytest.mark.parametrize("slot", SLOTS)
def test_every_piece_is_importable_by_its_name(slot: str) -> None:
    for name, piece in catalogue(slot).items():
        function = getattr(importlib.import_module(piece.module), piece.function)
        assert callable(function), name
        assert piece.doc, f"{name} says nothing about itself"


def test_resolved_specs_hold_every_default_and_build() -> None:
    spec = resolve("objective", {"name": "clip", "high": 0.28})
    assert spec["low"] == 0.2 and spec["high"] == 0.28
    assert callable(build("objective", spec))


def test_failing_reward_is_failed_and_none_is_skipped() -> None:
    @each
    def shaky(prompt: Prompt, trajectory: Trajectory) -> float | None:
        if trajectory.text == "bad":
            raise ZeroDivisionError("no")
        return (
            None
            if trajectory.text == "skip"
            else {"nan": float("nan"), "inf": float("inf")}.get(trajectory.text, 1.0)
        )

    group = Group(
        Prompt("p", ()),
        tuple(
            Trajectory(({"role": "assistant", "content": t},)) for t in ("good", "bad", "skip", "nan", "inf")
        ),
    )
    columns = shaky([group], None)
    assert columns["reward.shaky"] == [[1.0, None, None, None, None]]
    assert columns["reward.shaky.status"][0][3:] == [
        "failed: ValueError: the reward is nan",
        "failed: ValueError: the reward is inf",
    ]
    assert columns["reward.shaky.status"][0][0] == "ok"
    assert columns["reward.shaky.status"][0][1] == "failed: ZeroDivisionError: no"
    assert columns["reward.shaky.status"][0][2].startswith("skipped")


@pytest.mark.parametrize("slot", SLOTS)
def test_every_number_that_a_piece_takes_has_a_range(slot: str) -> None:
    """No bare int or float: `Finite` and `Int` of components/recipes/ranges.py state that any value is
    allowed.
    """
    for name, piece in catalogue(slot).items():
        for option in piece.options.values():
            assert not {"int", "float"} & set(re.findall(r"\w+", option.annotation)), (
                f"{name}.{option.name}: {option.annotation}"
            )
            assert option.kind is not Any or option.annotation == "Any", (
                f"{name}.{option.name}: {option.annotation} is not checked"
            )


def test_equal_numbers_give_equal_options_in_every_spelling() -> None:
    assert (
        resolve("rollout", {"name": "sample", "temperature": 1})
        == resolve("rollout", "sample")
        == resolve("rollout", {"name": "sample", "top_p": None})
    )
