"""Sequence packing against hand-counted tokens."""

from __future__ import annotations

import pytest
import torch

from ratchet.components.errors import ContractError
from ratchet.components.training.packing import order, pack, row_lengths
from ratchet.components.types import Group, Prompt, Trajectory


def group(name: str, *rows: list[int], **columns) -> Group:
    return Group(
        Prompt(name, ()),
        tuple(Trajectory((), {"tokens": r}, [False] + [True] * (len(r) - 1)) for r in rows),
        columns,
    )


def test_shared_prefixes_count_once() -> None:
    siblings = group("a", [1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 3, 6])  # 4 + 1 + 1 = 6 tokens
    assert [len(b.mask) for b in pack([siblings, group("b", [7, 8])], unit="group", tokens=8)] == [4]
    assert [len(b.mask) for b in pack([siblings, group("b", [7, 8])], unit="group", tokens=7)] == [3, 1]
    assert [len(b.mask) for b in pack([siblings], unit="row", tokens=5)] == [2, 1]


def test_units_stay_whole_and_are_numbered() -> None:
    four = group("a", [1, 2, 3], [1, 4, 5], [1, 6, 7], [1, 8, 9])
    pairs = pack([four], unit="pair", tokens=5)
    assert [b.unit.tolist() for b in pairs] == [[0, 0], [0, 0]] and pairs[1].inputs["tokens"][0].tolist() == [
        1,
        6,
        7,
    ]
    assert [b.unit.tolist() for b in pack([four], unit="pair", tokens=99)] == [[0, 0, 1, 1]]
    assert [len(b.unit) for b in pack([four, four], unit="group", tokens=1)] == [4, 4]
    with pytest.raises(ContractError, match="pair"):
        pack([group("odd", [1, 2])], unit="pair", tokens=9)


def test_columns_become_tensors() -> None:
    batch = pack(
        [
            group(
                "a",
                [1, 2, 3],
                [1, 4],
                reward=[1, True],
                steps=[[0.0, 1.0, 2.0], [0.0, 3.0]],
                status=["ok", "ok"],
                gone=[None, 1.0],
            )
        ],
        unit="row",
        tokens=99,
    )[0]
    assert sorted(batch.columns) == ["reward", "steps"]
    assert batch["reward"].tolist() == [1.0, 1.0] and batch["steps"].tolist() == [[0, 1, 2], [0, 3, 0]]
    assert batch.mask.tolist() == [[False, True, True], [False, True, False]] and batch.ids == ("a", "a")
    with pytest.raises(KeyError, match="never written"):
        batch["gone"]


def test_a_column_of_steps_must_be_aligned() -> None:
    with pytest.raises(ContractError, match="steps"):
        pack([group("a", [1, 2, 3], steps=[[1.0]])], unit="row", tokens=9)


def test_order_is_a_shuffle_of_seed_and_epoch() -> None:
    assert sorted(order(50, 0, 1)) == list(range(50)) and order(50, 0, 1) == order(50, 0, 1)
    assert order(50, 0, 1) != order(50, 1, 1) and order(50, 0, 1) != order(50, 0, 2)


def steps_of(*lengths: int, **columns) -> Group:
    paths = [
        Trajectory((), {"observations": [[float(t), 1.0]] * t, "actions": [[0.5]] * t}, [True] * t)
        for t in lengths
    ]
    return Group(Prompt("a", ()), tuple(paths), columns)


def test_rows_of_arrays_are_as_long_as_their_mask() -> None:
    (batch,) = pack([steps_of(3, 2, turn_reward=[[1, 2, 3], [4, 5]])], unit="group", tokens=9)
    assert sorted(batch.inputs) == ["actions", "observations"] and row_lengths(batch) == [3, 2]
    assert [tuple(row.shape) for row in batch.inputs["observations"]] == [(3, 2), (2, 2)]
    assert batch.inputs["observations"][0].dtype == torch.float32
    assert batch.mask.tolist() == [[True] * 3, [True, True, False]]
    assert batch["turn_reward"].tolist() == [[1, 2, 3], [4, 5, 0]]
    assert [len(b.group) for b in pack([steps_of(3, 2, 4)], unit="row", tokens=5)] == [2, 1], "3 + 2, then 4"


def test_rows_of_arrays_must_be_whole() -> None:
    short = Trajectory((), {"observations": [[1.0]], "actions": [[1.0], [2.0]]}, [True] * 2)
    with pytest.raises(ContractError, match=r"2 actions and 1 observations and a mask of length 2"):
        pack([Group(Prompt("a", ()), (short,))], unit="row", tokens=9)
    mixed = [steps_of(2), group("b", [1, 2, 3])]
    with pytest.raises(ContractError, match=r"the inputs \['tokens'\], and others of its batch"):
        pack(mixed, unit="row", tokens=9)
