"""The training loop: planned steps, empty data, whole units. Losses are tested with the objectives."""

from __future__ import annotations

from pathlib import Path

import pytest

from ratchet.components.errors import TrainingError
from ratchet.components.storage.checkpoints import latest
from ratchet.components.training import trainer
from ratchet.components.training.objectives import parts
from ratchet.components.training.packing import widest
from ratchet.components.training.steps import steps_planned
from ratchet.components.training.trainer import fit
from ratchet.components.types import Group, Outputs, Prompt, Trajectory


@pytest.mark.parametrize(
    ("units", "batch", "epochs", "most", "steps"),
    [(10, 4, 1, None, 3), (10, 4, 2, None, 6), (8, 4, 1, None, 2), (10, 4, 2, 5, 5), (1, 8, 1, None, 1)],
)
def test_steps_planned(units: int, batch: int, epochs: int, most: int | None, steps: int) -> None:
    assert steps_planned(units, {"batch": batch, "epochs": epochs, "max_steps": most}) == steps


def test_empty_training_set_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="empty"):
        fit({}, {}, [], {"batch": 1}, tokens=8, seed=0, progress=tmp_path, metrics=tmp_path / "m.jsonl")


class Learner:
    """One number that learns; the updates in `lost` are not taken."""

    def __init__(self, *lost: int) -> None:
        import torch

        self.bias, self.lost, self.called, self.steps = torch.zeros((), requires_grad=True), lost, 0, 0

    def __call__(self, batch, outputs):
        return Outputs({"logprobs": self.bias - 1.0 * batch.mask})

    def backward(self, loss):
        loss.backward()

    def step(self, at=None):
        self.called += 1
        self.steps += self.called not in self.lost
        return {}

    def state(self):
        return {"steps": self.steps}

    def restore(self, state):
        self.called = self.steps = state["steps"]


def fitted(folder: Path, learners: dict, **changes) -> dict:
    updates = {
        role: parts([{"name": "likelihood", "weight": 1.0, "reduce": "token_mean", "label": "likelihood"}])
        for role in learners
    }
    groups = [
        Group(Prompt(f"{i}", ()), (Trajectory((), {"tokens": [i, 7]}, [False, True]),)) for i in range(6)
    ]
    options = {
        "batch": 2,
        "epochs": 1,
        "max_steps": None,
        "validate_every": 0,
        "patience": 0,
        "save_every": 0,
        **changes,
    }
    return fit(
        learners,
        updates,
        groups,
        options,
        tokens=8,
        seed=0,
        progress=folder / "progress",
        metrics=folder / "m.jsonl",
    )


def test_steps_done_are_steps_planned(tmp_path: Path) -> None:
    assert fitted(tmp_path, {"policy": Learner()})["steps"] == 3
    assert fitted(tmp_path, dict.fromkeys(("policy", "critic"), Learner()))["steps"] == 3, (
        "two roles, two updates a step"
    )
    with pytest.raises(TrainingError, match="2 optimizer updates after 3 steps"):
        fitted(tmp_path, {"policy": Learner(2)})


def test_a_checkpoint_of_more_steps_than_are_planned_is_not_finished(tmp_path: Path) -> None:
    fitted(tmp_path, {"policy": Learner()}, epochs=3, save_every=4)
    checkpoint = latest(tmp_path / "progress")
    assert checkpoint and checkpoint.name == "checkpoint-8"
    with pytest.raises(TrainingError, match="8 of 3"):
        fitted(tmp_path, {"policy": Learner()})


def test_checkpoints_are_five_minutes_apart_by_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner, saved = Learner(), []
    monkeypatch.setattr(
        trainer.time, "monotonic", lambda: 7.0 + 100 * learner.called
    )  # a step takes 100 s, on a machine that just booted
    monkeypatch.setattr(trainer, "save_checkpoint", lambda folder, state, *rest: saved.append(state["step"]))
    fitted(tmp_path, {"policy": learner}, epochs=3, save_every=None)
    assert saved == [3, 6]


def test_widest_unit_of_several_objectives() -> None:
    assert (
        widest(["step", "pair", "row"]) == "pair"
        and widest(["step"]) == "step"
        and widest(["group", "pair"]) == "group"
    )


def test_a_schedule_learns_nothing_from_a_step_without_its_rows() -> None:
    kl = {"name": "kl", "weight": {"name": "adaptive_kl", "target": 0.1}, "reduce": "token_mean"}
    update = parts([{**kl, "label": "kl", "where": "keep"}])
    group = Group(
        Prompt("p", ()),
        (Trajectory((), {"tokens": [1, 2]}, [False, True]),),
        {"keep": [0.0], "logprobs.reference": [[0.0, -1.0]]},
    )
    line = trainer.one_step({"policy": Learner()}, {"policy": update}, [group], tokens=9)  # pyright: ignore[reportArgumentType]
    assert line == {"policy/loss": 0.0} and update[0].memories()["weight"].value() == 0.2
