"""Value of partial solutions: what it reads, and its loss by hand."""

from __future__ import annotations

import math

import pytest
import torch

from ratchet.components.inference.torch import TorchEngine
from ratchet.components.models.reading import Reading
from ratchet.components.models.tiny import train_tiny
from ratchet.components.pieces.objectives.step_value import step_value, step_values
from ratchet.components.pieces.scoring.trace_value import state_values
from ratchet.components.training.packing import pack
from ratchet.components.types import Batch, Group, Outputs, Prompt, Request, Trajectory


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> TorchEngine:
    path = tmp_path_factory.mktemp("small")
    train_tiny(path, steps=1, hidden=32, layers=2, batch=4)
    return TorchEngine(path)


def read(engine: TorchEngine, *rows: list[int]) -> torch.Tensor:
    made = tuple(Trajectory((), {"tokens": row}, [False] + [True] * (len(row) - 1)) for row in rows)
    (batch,) = pack([Group(Prompt("p", ()), made)], unit="row", tokens=99)
    with torch.no_grad():
        return step_values(Reading(engine.model, batch))


def test_the_value_is_that_of_the_last_two_logits_after_the_token(engine: TorchEngine) -> None:
    tokens, size = [40, 50, 60], len(engine.tokenizer)
    (sample,) = engine.generate([Request(tokens, max_tokens=1, temperature=0.0, top_logprobs=size)])[0]
    logprobs = dict(sample.top[0])
    expected = 1 / (1 + math.exp(logprobs[size - 2] - logprobs[size - 1]))
    assert read(engine, tokens)[0, -1].item() == pytest.approx(expected, abs=1e-5)
    assert abs(expected - 0.5) > 1e-4


def test_a_value_sees_its_own_step_and_nothing_after_it(engine: TorchEngine) -> None:
    whole, other = read(engine, [40, 50, 60, 70], [40, 50, 61])
    assert read(engine, [40, 50])[0].tolist() == pytest.approx(whole[:2].tolist(), abs=1e-5)
    assert whole[:2].tolist() == pytest.approx(other[:2].tolist(), abs=1e-5)
    assert abs(whole[2] - other[2]) > 1e-4 and other[3] == 0.0


def test_state_values_are_those_of_the_last_token_of_each_state(engine: TorchEngine) -> None:
    states = [[40, 50, 60, 70], [40, 50], [41, 50, 60]]
    expected = [read(engine, state)[0, len(state) - 1].item() for state in states]
    assert state_values(engine, states) == pytest.approx(expected, abs=1e-5)
    assert state_values(engine, []) == []


def test_the_loss_is_the_squared_error_at_each_step() -> None:
    batch = Batch(
        {},
        torch.tensor([[True, True]]),
        {"target.value": torch.tensor([[1.0, 0.25]])},
        torch.tensor([0]),
        torch.tensor([0]),
        ("p",),
    )
    terms = step_value(Outputs({"step_values": torch.tensor([[0.6, 0.5]])}), batch)
    assert terms.loss.tolist() == [[pytest.approx(0.16), pytest.approx(0.0625)]]
    assert terms.metrics["value"].tolist() == [[pytest.approx(0.6), pytest.approx(0.5)]]
