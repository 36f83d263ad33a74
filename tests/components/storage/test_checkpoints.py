"""Checkpoints and metrics log of a fit: every step once, exact resume."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ratchet.components.storage.checkpoints import Log, latest, load_checkpoint, save_checkpoint
from ratchet.components.training.loop import pieces, stateful_pieces
from ratchet.components.types import Context, Group, Prompt, Trajectory


@pytest.mark.parametrize(("before", "after"), [(4, 2), (10, 9), (9, 10)])
def test_save_does_not_replace_a_later_checkpoint(before: int, after: int, tmp_path: Path) -> None:
    for step in (before, after):
        save_checkpoint(tmp_path, {"step": step, "written": step}, {}, {})
    found = latest(tmp_path)
    assert found and load_checkpoint(found, {}, {}) == {
        "step": max(before, after),
        "written": max(before, after),
    }
    assert [p.name for p in tmp_path.iterdir()] == [f"checkpoint-{max(before, after)}"]


def test_latest_is_the_checkpoint_with_the_most_steps(tmp_path: Path) -> None:
    """A kill between saving one and dropping the one before leaves both."""
    assert latest(tmp_path) is None
    for step in (9, 10):
        save_checkpoint(tmp_path / "beside", {"step": step}, {}, {})
        (tmp_path / "beside" / f"checkpoint-{step}").rename(tmp_path / f"checkpoint-{step}")
    found = latest(tmp_path)
    assert found and found.name == "checkpoint-10"


def test_only_rank_0_writes_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 5}\n')
    monkeypatch.setattr("ratchet.components.training.ranks.rank", lambda: 1)
    save_checkpoint(tmp_path, {"step": 5}, {}, {})
    Log(tmp_path / "metrics.jsonl", after=3)({"loss": 1.0}, 4)
    assert latest(tmp_path) is None and (tmp_path / "metrics.jsonl").read_text() == '{"step": 5}\n'


def test_resumed_metrics_log_has_every_step_once(tmp_path: Path) -> None:
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


def test_state_of_pieces_survives_a_checkpoint(tmp_path: Path) -> None:
    def fresh():
        prompts, select = (
            pieces("prompts", [{"name": "difficulty_pool"}]),
            pieces("select", [{"name": "threshold"}, {"name": "replay"}]),
        )
        return prompts[0][1], select[1][1], stateful_pieces(prompts=prompts, select=select)

    groups = [
        Group(
            Prompt(f"{i}", ({"role": "user", "content": "hi"},)),
            (Trajectory((), {"tokens": [i, 7]}, [False, True]),) * 2,
            {"reward.exact_answer": [1.0, float(i % 2)]},
        )
        for i in range(8)
    ]
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
