"""Exact serialisation of state without pickle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from ratchet.components.data.step_values import compact
from ratchet.components.errors import DamageError, StoreError
from ratchet.components.storage.state import load_state, save_state
from ratchet.components.types import Group, Prompt, Span, Trajectory


def test_round_trip_is_exact(tmp_path: Path) -> None:
    state = {
        "step": 3,
        "none": None,
        "pi": 0.1 + 0.2,
        "list": [1, "a", {"t": torch.arange(3)}],
        "by_number": {0: {"m": torch.randn(2, 3, dtype=torch.float64)}},
        "flag": True,
    }
    save_state(tmp_path / "s", state)
    back = load_state(tmp_path / "s")
    assert back["step"] == 3 and back["pi"] == state["pi"] and back["flag"] is True and back["none"] is None
    assert torch.equal(back["list"][2]["t"], torch.arange(3))
    assert torch.equal(back["by_number"][0]["m"], state["by_number"][0]["m"])


def test_shared_tensors_and_views_are_saved(tmp_path: Path) -> None:
    base = torch.arange(6.0).view(2, 3)
    save_state(tmp_path / "s", {"a": base, "b": base.T, "c": base[0]})
    back = load_state(tmp_path / "s")
    assert torch.equal(back["b"], base.T) and torch.equal(back["c"], base[0])


def test_groups_come_back_equal(tmp_path: Path) -> None:
    answer = Trajectory(
        ({"role": "assistant", "content": "4"},),
        {"tokens": [1, 2, 3]},
        [False, True, True],
        (-0.1, -1 / 3),
        "policy",
        "w",
        (Span(0, 2, 0.5), Span(2, 3)),
        (0, 1),
        "length",
        {"temperature": 0.7},
    )
    group = Group(
        Prompt("p", ({"role": "user", "content": "2 + 2"},), "4", meta={"kind": "sum"}),
        (answer, answer),
        {"reward.exact_answer": [1.0, 0.0], "logprobs.reference": [[0.0, -0.5, -0.25]] * 2},
    )
    save_state(tmp_path / "s", {"memory": [group]})
    assert load_state(tmp_path / "s") == {"memory": [group]}


def test_groups_with_arrays_come_back_equal(tmp_path: Path) -> None:
    """Groups of a large round have their numbers per step in arrays; a replay memory keeps them."""
    path = Trajectory((), {"tokens": [1, 2, 3]}, [False, True, True], [0.0, -0.1, -0.25])
    group = Group(Prompt("p", ()), (path,), {"returns": [[0.1, 0.2, 0.3]], "reward.a": [1.0]})
    save_state(tmp_path / "s", {"seen": [compact(group)]})
    (back,) = load_state(tmp_path / "s")["seen"]
    assert back == group and isinstance(back.columns["returns"][0], list)


def test_save_replaces_and_damage_is_an_error(tmp_path: Path) -> None:
    save_state(tmp_path / "s", {"step": 1, "t": torch.ones(4)})
    save_state(tmp_path / "s", {"step": 2, "t": torch.ones(4)})
    assert load_state(tmp_path / "s")["step"] == 2
    file = tmp_path / "s" / "tensors.safetensors"
    file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(DamageError, match="damaged"):
        load_state(tmp_path / "s")


@pytest.mark.parametrize("name", ["tensors.safetensors", "state.json"])
def test_one_flipped_bit_is_detected(tmp_path: Path, name: str) -> None:
    save_state(tmp_path / "c", {"weights": torch.ones(8), "step": 17})
    file = tmp_path / "c" / name
    content = bytearray(file.read_bytes())
    at = len(content) - 1 if name.endswith("safetensors") else content.index(b"17")
    content[at] ^= 1  # still a readable file, with another number in it
    file.write_bytes(content)
    with pytest.raises(DamageError, match=f"SHA-256 of {name}"):
        load_state(tmp_path / "c")


def test_unreadable_state_is_not_reported_as_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise "too many open files" would restart a stage from the beginning."""
    save_state(tmp_path / "s", {"step": 1})
    monkeypatch.setattr(
        "ratchet.components.storage.state.file_digest",
        lambda _: (_ for _ in ()).throw(OSError(24, "Too many open files")),
    )
    with pytest.raises(StoreError, match=r"Too many open files") as raised:
        load_state(tmp_path / "s")
    assert not isinstance(raised.value, DamageError)


def test_tensors_whose_paths_are_spelt_alike_stay_apart(tmp_path: Path) -> None:
    state: Any = {1: torch.ones(1), "1": torch.zeros(1), "a/b": torch.ones(2), "a": {"b": torch.zeros(2)}}
    save_state(tmp_path / "s", state)
    loaded: Any = load_state(tmp_path / "s")
    assert [loaded[1].tolist(), loaded["1"].tolist()] == [[1.0], [0.0]]
    assert [loaded["a/b"].tolist(), loaded["a"]["b"].tolist()] == [[1.0] * 2, [0.0] * 2]


def test_a_key_that_could_not_be_read_back_is_refused_when_saving(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"'/m' has the key \('x', 1\)"):
        save_state(tmp_path / "s", {"m": {("x", 1): 3}})
