"""Functions: the splits, and that the right demonstrations and no others pass their asserts."""

from __future__ import annotations

from collections import Counter

import pytest

from ratchet.components.errors import DataError
from ratchet.components.pieces.rewards.unit_tests import program_of
from ratchet.components.pieces.testbeds.functions import functions
from ratchet.components.types import Prompt


def passes(row: dict) -> bool:
    prompt = Prompt(row["id"], (), meta={"test_list": row["test_list"]})
    try:
        exec(program_of(prompt, row["completion"][0]["content"]), {})
    except AssertionError:
        return False
    return True


def test_every_split_has_its_size_and_every_instruction_occurs_once() -> None:
    rows = list(functions(size=20, prompts=10, held_out=5))
    assert Counter(row["split"] for row in rows) == {"sft": 20, "prompts": 10, "test": 5}
    assert len({row["prompt"][0]["content"] for row in rows}) == len({row["id"] for row in rows}) == 35
    assert all(("completion" in row) == (row["split"] == "sft") for row in rows)
    with pytest.raises(DataError, match="lower a size"):
        list(functions(size=729, prompts=1))


def test_the_share_of_demonstrations_that_pass_is_that_of_right_ones() -> None:
    for right, expected in ((0.0, 0.0), (0.5, 0.5), (1.0, 1.0)):
        rows = [row for row in functions(right=right) if row["split"] == "sft"]
        assert sum(map(passes, rows)) / len(rows) == pytest.approx(expected, abs=0.08)
