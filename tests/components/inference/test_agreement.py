"""Sampler log-probs against training log-probs: exact in float32, within rounding in half precision."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from ratchet.components.errors import ContractError
from ratchet.components.inference import choose
from ratchet.components.inference.agreement import Gap, gap, require_agreement
from ratchet.components.inference.torch import TorchEngine
from ratchet.components.models.load import load_policy, load_tokenizer, save_model
from ratchet.components.models.tiny import train_tiny
from ratchet.components.recipes.plain_values import plain
from ratchet.components.recipes.profile import Profile, Vllm
from ratchet.components.types import Group, Prompt, Request, Trajectory


def profile(dtype: Any = "float32", **options: Any) -> dict[str, Any]:
    return plain(
        Profile(
            threads=1, **{"engine": "vllm", "vllm": Vllm(server="http://127.0.0.1:9", dtype=dtype), **options}
        )
    )


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A policy, and the same policy after one small training step."""
    first, later = tmp_path_factory.mktemp("first"), tmp_path_factory.mktemp("later")
    train_tiny(first, steps=2, hidden=64, layers=2, batch=8)
    model = load_policy(first)
    with torch.no_grad():
        torch.manual_seed(1)
        for weight in model.parameters():
            weight += 1e-3 * torch.randn_like(weight)
    save_model(model, load_tokenizer(first), later)
    return first, later


def test_stale_server_weights_are_detected_at_the_first_answer(
    two: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A torch engine that may ignore `load` stands in for vLLM."""
    first, later = two
    torch_engine = TorchEngine(first, threads=1)
    monkeypatch.setattr(choose, "sampler", lambda profile, path: torch_engine)
    engine = choose.engine_of(profile(), first)
    requests = [
        Request(
            engine.encode_prompt(Prompt("", ({"role": "user", "content": f"{i} + 1 ="},))),
            count=2,
            max_tokens=8,
            seed=i,
        )
        for i in range(6)
    ]
    answers = engine.generate(requests)
    assert answers == TorchEngine(first, threads=1).generate(requests) and engine.generate([]) == []
    monkeypatch.setattr(
        TorchEngine,
        "load",
        lambda self, path, weights="", load=TorchEngine.load: (
            None if self is torch_engine else load(self, path)
        ),
    )
    engine.load(later)
    with pytest.raises(ContractError, match=r"\S+ nats"):
        engine.generate(requests)
    engine.load(first)
    assert engine.generate(requests) == answers


def test_logprob_gap_uses_only_masked_steps_with_sampler_logprobs() -> None:
    paths = (
        Trajectory((), mask=[False, True, True], logprobs=[0.0, -1.0, -2.0]),
        Trajectory((), mask=[False, True, True]),
    )
    rows = [[9.0, -1.5, -2.25], [9.0, 9.0, 9.0]]
    assert gap([Group(Prompt("p", ()), paths)], [{"logprobs": rows}]) == Gap(0.5, 0.375)
    assert gap([], []) == Gap(0.0, 0.0)
    assert (
        gap([Group(Prompt("p", ()), paths)], [{"logprobs": [[0.0, math.nan, -2.0], rows[1]]}]).worst
        == math.inf
    )


def test_tolerance_depends_on_the_precision() -> None:
    exact = [profile(), profile(engine="torch"), profile("bfloat16", engine="torch")]
    half = [
        profile("bfloat16"),
        profile("float16"),
        profile(engine="torch", learner="deepspeed", precision="bfloat16"),
    ]
    rounded = Gap(worst=0.6, mean=0.06)  # SmolLM2-135M in bfloat16 against itself in float32
    for given in exact:
        with pytest.raises(ContractError, match="at worst"):
            require_agreement(rounded, given)
        assert require_agreement(Gap(5e-4, 1e-4), given) == 5e-4
    for given in half:
        assert require_agreement(rounded, given) == 0.6
        with pytest.raises(ContractError, match="on average"):
            require_agreement(Gap(3.0, 0.3), given)
