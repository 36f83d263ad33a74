"""The loop's own promises: whole steps, empty data, exact logs. Numbers of the losses are tested with the objectives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from components.errors import TrainingError
from components.loop import pieces, remembering
from components.progress import Log, latest, load_checkpoint, save_checkpoint
from components.trainer import fit, parts, steps_planned, widest
from components.types import Context, Group, Outputs, Prompt, Trajectory


@pytest.mark.parametrize(("units", "batch", "epochs", "most", "steps"), [
    (10, 4, 1, None, 3), (10, 4, 2, None, 6), (8, 4, 1, None, 2), (10, 4, 2, 5, 5), (1, 8, 1, None, 1)])
def test_steps_planned(units: int, batch: int, epochs: int, most: int | None, steps: int) -> None:
    assert steps_planned(units, {"batch": batch, "epochs": epochs, "max_steps": most}) == steps


def test_nothing_to_train_on_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="the data set is empty"):
        fit({}, {}, [], {"batch": 1}, tokens=8, seed=0, progress=tmp_path, metrics=tmp_path / "m.jsonl")


class Learner:
    """One number that learns; the updates in `lost` are not taken."""

    def __init__(self, *lost: int) -> None:
        import torch

        self.bias, self.lost, self.called, self.steps = torch.zeros((), requires_grad=True), lost, 0, 0

    def __call__(self, batch, asks):
        return Outputs({"logprobs": self.bias - 1.0 * batch.mask})

    def backward(self, loss):
        loss.backward()

    def step(self):
        self.called += 1
        self.steps += self.called not in self.lost
        return {}

    def state(self):
        return {"steps": self.steps}

    def restore(self, state):
        self.called = self.steps = state["steps"]


def fitted(folder: Path, learners: dict, **changes) -> dict:
    updates = {role: parts([{"name": "likelihood", "weight": 1.0, "reduce": "token_mean", "label": "likelihood"}]) for role in learners}
    groups = [Group(Prompt(f"{i}", ()), (Trajectory((), {"tokens": [i, 7]}, [False, True]),)) for i in range(6)]
    options = {"batch": 2, "epochs": 1, "max_steps": None, "validate_every": 0, "patience": 0, "save_every": 0, **changes}
    return fit(learners, updates, groups, options, tokens=8, seed=0, progress=folder / "progress", metrics=folder / "m.jsonl")


def test_steps_done_are_steps_planned(tmp_path: Path) -> None:
    assert fitted(tmp_path, {"policy": Learner()})["steps"] == 3
    assert fitted(tmp_path, dict.fromkeys(("policy", "critic"), Learner()))["steps"] == 3, "two roles, two updates a step"
    with pytest.raises(TrainingError, match="the optimiser of policy took 2 updates where 3 belong to 3 steps; nothing is published"):
        fitted(tmp_path, {"policy": Learner(2)})


def test_a_checkpoint_of_more_steps_than_are_planned_is_not_finished(tmp_path: Path) -> None:
    fitted(tmp_path, {"policy": Learner()}, epochs=3, save_every=4)
    checkpoint = latest(tmp_path / "progress")
    assert checkpoint and checkpoint.name == "checkpoint-8"
    with pytest.raises(TrainingError, match="8 steps were done where 3 were planned"):
        fitted(tmp_path, {"policy": Learner()})


@pytest.mark.parametrize(("before", "after"), [(4, 2), (10, 9), (9, 10)])
def test_a_checkpoint_that_is_further_stays(before: int, after: int, tmp_path: Path) -> None:
    for step in (before, after):
        save_checkpoint(tmp_path, {"step": step, "written": step}, {}, {})
    found = latest(tmp_path)
    assert found and load_checkpoint(found, {}, {}) == {"step": max(before, after), "written": max(before, after)}
    assert [p.name for p in tmp_path.iterdir()] == [f"checkpoint-{max(before, after)}"]


def test_a_resumed_log_has_every_step_once(tmp_path: Path) -> None:
    file = tmp_path / "metrics.jsonl"
    log = Log(file, after=0)
    for step in range(1, 6):
        log({"loss": float(step)}, step)
    with file.open("a") as handle:
        handle.write('{"step": 6, "metr')  # cut by a kill
    again = Log(file, after=3)
    for step in range(4, 7):
        again({"loss": float(step)}, step)
    assert [json.loads(line)["step"] for line in file.read_text().splitlines()] == [1, 2, 3, 4, 5, 6]


def test_the_widest_unit_holds_the_others() -> None:
    assert widest(["step", "pair", "row"]) == "pair" and widest(["step"]) == "step" and widest(["group", "pair"]) == "group"


def test_pieces_remember_through_a_checkpoint(tmp_path: Path) -> None:
    def fresh():
        prompts, select = pieces("prompts", [{"name": "difficulty_pool"}]), pieces("select", [{"name": "threshold"}, {"name": "replay"}])
        return prompts[0][1], select[1][1], remembering(prompts=prompts, select=select)

    groups = [Group(Prompt(f"{i}", ({"role": "user", "content": "hi"},)), (Trajectory((), {"tokens": [i, 7]}, [False, True]),) * 2,
                    {"reward.exact_answer": [1.0, float(i % 2)]}) for i in range(8)]
    choose, replay, remembered = fresh()
    assert sorted(remembered) == ["prompts.0.difficulty_pool", "select.1.replay"]
    choose.update(groups)
    replay(groups, Context(round=1))
    for step in (1, 2):
        save_checkpoint(tmp_path, {"step": step}, {}, remembered)
    again, replay_again, restored = fresh()
    checkpoint = latest(tmp_path)
    assert checkpoint and load_checkpoint(checkpoint, {}, restored) == {"step": 2}
    every = [g.prompt for g in groups]
    assert choose.solved and choose.solved == again.solved
    assert choose(every, 4, 3, 9, 0) == again(every, 4, 3, 9, 0)
    assert replay(groups[:4], Context(round=2)) == replay_again(groups[:4], Context(round=2))
