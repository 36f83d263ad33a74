"""The layout of the variable-length kernel, with a plain implementation in its place: packed rows with shared
prefixes attend as the loop over segments does. On a GPU the kernel itself is tested (tests/gpu).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from ratchet.components.inference.torch import TorchEngine
from ratchet.components.models import varlen_attention
from ratchet.components.models.attention import PackedPlan
from ratchet.components.models.attention_types import Variant
from ratchet.components.types import Request

ROWS = [
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11],
    [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13],
    [1, 2, 3, 4, 5, 6, 7, 8, 20, 21, 22, 23, 24, 25, 26, 27, 28],
    [1, 2, 3, 4, 5, 6, 7, 8, 20, 21, 22, 23, 24, 25, 26, 27, 29],
    [40, 41],
    [50],
]


def plain(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    starts: Tensor,
    key_starts: Tensor,
    longest: int,
    longest_keys: int,
    *,
    scale: float,
    window_size: tuple[int, int],
) -> Tensor:
    """`varlen_attn` as its documentation defines it: queries aligned with the last keys."""
    assert starts.dtype == key_starts.dtype == torch.int32 and window_size[1] == 0
    assert longest == int(starts.diff().max()) and longest_keys == int(key_starts.diff().max())
    out = torch.empty_like(query)
    for i in range(len(starts) - 1):
        q = query[starts[i] : starts[i + 1]]
        k, v = (t[key_starts[i] : key_starts[i + 1]] for t in (key, value))
        at = torch.arange(len(q), device=q.device)[:, None] + len(k) - len(q)
        distance = at - torch.arange(len(k), device=q.device)
        seen = (distance >= 0) & ((distance <= window_size[0]) | (window_size[0] < 0))
        logits = torch.einsum("qhd,khd->hqk", q, k) * scale
        weights = logits.masked_fill(~seen, -torch.inf).softmax(-1)
        out[starts[i] : starts[i + 1]] = torch.einsum("hqk,khd->qhd", weights, v)
    return out


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The kernel replaced by `plain`, and used; a list that grows with every call."""
    calls: list[int] = []
    monkeypatch.setattr(varlen_attention, "HALF", (torch.float32,))
    monkeypatch.setattr(varlen_attention, "has_kernel", lambda *_: True)
    monkeypatch.setattr(varlen_attention, "varlen_attn", lambda *a, **k: calls.append(1) or plain(*a, **k))
    yield calls


@pytest.mark.parametrize("window", [None, 1, 3, 9, 100])
@pytest.mark.parametrize("shared", [True, False])
def test_layout_attends_as_the_loop(
    window: int | None, shared: bool, kernel: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [torch.tensor(row) for row in (ROWS if shared else ROWS[3:])]
    variant = Variant(scale=0.3, window=window)
    generator = torch.Generator().manual_seed(0)
    plan = PackedPlan(rows)
    assert any(s.before for s in plan.segments) == shared
    n = plan.tokens.shape[1]
    given = [torch.randn(1, heads, n, 8, generator=generator).requires_grad_() for heads in (4, 2, 2)]
    out = plan.attend(0, *given, variant)
    assert len(kernel) == 1
    weights = torch.randn(out.shape, generator=generator)
    gradients = torch.autograd.grad((out * weights).sum(), given)
    monkeypatch.setattr(varlen_attention, "has_kernel", lambda *_: False)
    expected = PackedPlan(rows).attend(0, *given, variant)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
    for ours, theirs in zip(gradients, torch.autograd.grad((expected * weights).sum(), given), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_prompts_in_the_cache(tiny_model: Any, kernel: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts that continue what another one has left in the cache: the same answers."""
    engine = TorchEngine(tiny_model, rows=2)
    base = list(range(5, 25))
    requests = [
        Request([*base, *tail], count=1, max_tokens=4, seed=i)
        for i, tail in enumerate([[30], [30, 31], [33, 34], [40], []])
    ]
    ours = engine.generate(requests)
    assert kernel
    monkeypatch.setattr(varlen_attention, "has_kernel", lambda *_: False)
    for mine, theirs in zip(ours, engine.generate(requests), strict=True):
        assert mine[0].tokens == theirs[0].tokens
        assert mine[0].logprobs == pytest.approx(theirs[0].logprobs, abs=1e-4)
