"""Early stopping on rising validation loss; the best weights are kept."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ratchet.components.errors import TrainingError
from ratchet.components.recipes.recipe import names
from ratchet.components.storage.checkpoints import latest
from ratchet.components.training.objectives import parts
from ratchet.components.training.steps import steps_planned
from ratchet.components.training.trainer import fit
from ratchet.components.types import Batch, Group, Outputs, Prompt, Trajectory
from tests.shipped import shipped_recipe

BEST = 6  # of the toy's weight, on held-out data
LIKELIHOOD = [{"name": "likelihood", "weight": 1.0, "reduce": "token_mean", "label": "likelihood"}]


class Overfitting:
    """A weight that grows by one per step; log-probs are best where it equals `BEST`."""

    def __init__(self) -> None:
        import torch

        self.weight, self.steps = torch.zeros((), requires_grad=True), 0

    def __call__(self, batch: Batch, outputs: frozenset[str]) -> Outputs:
        return Outputs({"logprobs": -((self.weight - BEST) ** 2) * batch.mask})

    def backward(self, loss: Any) -> None:
        loss.backward()

    def step(self, at: Any = None) -> dict[str, float]:
        self.weight.data += 1
        self.steps += 1
        return {}

    def state(self) -> dict[str, Any]:
        return {"weight": self.weight.detach().clone(), "steps": self.steps}

    def restore(self, state: Mapping[str, Any]) -> None:
        self.weight.data.copy_(state["weight"])
        self.steps = int(state["steps"])

    def save(self, path: Path) -> None: ...


def group(key: str) -> Group:
    return Group(Prompt(key, ()), (Trajectory((), {"tokens": [5, 7]}, [False, True]),))


def fitted(folder: Path, **options: Any) -> tuple[Overfitting, dict[str, Any]]:
    learner = Overfitting()
    whole = {
        "batch": 1,
        "epochs": 1,
        "max_steps": None,
        "validate_every": 2,
        "patience": 2,
        "save_every": 3,
        **options,
    }
    found = fit(
        {"policy": learner},
        {"policy": parts(LIKELIHOOD)},
        [group(str(i)) for i in range(20)],
        whole,
        tokens=64,
        seed=0,
        progress=folder / "progress",
        metrics=folder / "metrics.jsonl",
        validation=[group("held out")],
    )
    return learner, found


@pytest.mark.parametrize(
    ("patience", "stopped", "steps"), [(1, True, 8), (2, True, 10), (0, False, 20), (7, False, 20)]
)
def test_early_stopping_on_rising_validation_loss(
    tmp_path: Path, patience: int, stopped: bool, steps: int
) -> None:
    """Validated at steps 2, 4, 6 (best), 8, 10, ...: stops after `patience` worse ones and restores the best
    weights.
    """
    learner, found = fitted(tmp_path, patience=patience)
    assert (found["stopped_early"], found["steps"], found["steps_planned"]) == (stopped, steps, 20)
    assert (found["best_step"], found["best_validation_loss"]) == (BEST, 0.0) and float(
        learner.weight.detach()
    ) == BEST
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == steps


def test_early_stopping_is_the_same_after_a_resume(tmp_path: Path) -> None:
    fitted(tmp_path)
    checkpoint = latest(tmp_path / "progress")
    assert checkpoint and checkpoint.name == "checkpoint-9", (
        "one worse validation is behind it, one before it"
    )
    learner, found = fitted(tmp_path)
    assert found["validation/policy/loss"] > 0, "the metrics of the last step"
    assert found["stopped_early"] and (
        found["steps"],
        found["best_step"],
        float(learner.weight.detach()),
    ) == (10, BEST, BEST)


def test_a_fit_that_stopped_before_its_checkpoint_reports_its_last_metrics(tmp_path: Path) -> None:
    _, found = fitted(tmp_path, save_every=1)
    _, again = fitted(tmp_path, save_every=1)
    for one in (found, again):
        one.pop("seconds")
    assert again == found


@pytest.mark.parametrize(
    "name",
    [
        n
        for n in names()
        if (s := shipped_recipe(n)[0].sft) and s.limit and s.fit.validate_every and s.fit.patience
    ],
)
def test_early_stopping_options_of_shipped_recipes_can_trigger(name: str) -> None:
    """`patience` validations after the first fit into the planned steps, with steps left to save."""
    sft = shipped_recipe(name)[0].sft
    assert sft and sft.limit
    steps = steps_planned(
        sft.limit, {"batch": sft.fit.batch, "epochs": sft.fit.epochs, "max_steps": sft.fit.max_steps}
    )
    assert (1 + sft.fit.patience) * sft.fit.validate_every < steps


@pytest.mark.parametrize(
    ("training", "validation", "why"),
    [(0.0, 1.0, "nothing was learned: no row has a positive keep"), (1.0, 0.0, "no validation loss")],
)
def test_objectives_without_any_row_are_an_error(
    training: float, validation: float, why: str, tmp_path: Path
) -> None:
    """A loss of 0 in every step or validation is no loss: early stopping would keep the first weights."""
    restricted = parts([{**LIKELIHOOD[0], "where": "keep"}])
    options = {"batch": 1, "epochs": 3, "max_steps": None, "validate_every": 2, "patience": 2}
    with pytest.raises(TrainingError, match=why):
        fit(
            {"policy": Overfitting()},  # pyright: ignore[reportArgumentType]
            {"policy": restricted},
            [group("train").with_columns(keep=[training])],
            {**options, "save_every": 0},
            tokens=64,
            seed=0,
            progress=tmp_path / "progress",
            metrics=tmp_path / "metrics.jsonl",
            validation=[group("held out").with_columns(keep=[validation])],
        )
