"""The fixed shapes of CUDA graphs, computed without graphs: the answers of ordinary decode steps. On a GPU
the graphs themselves are tested (tests/gpu).
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ratchet.components.inference import decoding
from ratchet.components.inference.torch import TorchEngine
from ratchet.components.models import decode_graph
from ratchet.components.models.decode_graph import DecodeGraphs, has_fixed_steps, rounded
from ratchet.components.types import Request


def requests() -> list[Request]:
    """More answers than rows, of unequal length and number: freed rows and slots are used again."""
    return [
        Request(list(range(5, 9 + 7 * i)), count=1 + i % 3, max_tokens=[3, 40, 17][i % 3], seed=i)
        for i in range(7)
    ]


def computed(self: DecodeGraphs, rows: int, own: int) -> tuple[Any, torch.Tensor]:
    """What `_capture` gives, without a graph."""
    hidden = self._step(rows, own)
    return SimpleNamespace(replay=lambda: hidden.copy_(self._step(rows, own))), hidden


def test_fixed_steps_give_the_same_answers(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = TorchEngine(tiny_model, rows=5)
    expected = engine.generate(requests())
    sizes: list[tuple[int, int]] = []
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: None)
    monkeypatch.setattr(decode_graph, "FEWEST_ROWS", 2)
    monkeypatch.setattr(decode_graph, "FEWEST_TOKENS", 4)
    monkeypatch.setattr(decoding, "has_fixed_steps", lambda _: True)
    monkeypatch.setattr(
        DecodeGraphs, "_capture", lambda self, *size: sizes.append(size) or computed(self, *size)
    )
    for ours, theirs in zip(engine.generate(requests()), expected, strict=True):
        for sample, other in zip(ours, theirs, strict=True):
            assert sample.tokens == other.tokens
            assert sample.logprobs == pytest.approx(other.logprobs, abs=1e-4)
    assert len(set(sizes)) == len(sizes) > 3, "one graph for each size, of several sizes"


def test_sizes_are_powers_of_two_within_the_cache() -> None:
    assert [rounded(n, 16, 100) for n in (1, 16, 17, 33, 64, 65, 100)] == [16, 16, 32, 64, 64, 100, 100]


def test_without_a_gpu_no_step_is_fixed(tiny_model: Path) -> None:
    assert not has_fixed_steps(TorchEngine(tiny_model).model)
