"""The loop's own promises: whole steps, empty data, exact logs. Numbers of the losses are tested with the objectives."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from components.errors import TrainingError
from components.loop import pieces, remembering
from components.progress import Log, latest, load_checkpoint, save_checkpoint
from components.trainer import fit, steps_planned, widest
from components.types import Context, Group, Prompt, Trajectory


@pytest.mark.parametrize(("units", "batch", "epochs", "most", "steps"), [
    (10, 4, 1, None, 3), (10, 4, 2, None, 6), (8, 4, 1, None, 2), (10, 4, 2, 5, 5), (1, 8, 1, None, 1)])
def test_steps_planned(units: int, batch: int, epochs: int, most: int | None, steps: int) -> None:
    assert steps_planned(units, {"batch": batch, "epochs": epochs, "max_steps": most}) == steps


def test_nothing_to_train_on_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="the data set is empty"):
        fit({}, {}, [], {"batch": 1}, tokens=8, seed=0, progress=tmp_path, metrics=tmp_path / "m.jsonl")


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
