"""Engines that follow a model in training through files in memory."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ratchet.components.inference import live
from ratchet.components.inference.live import live_engine, memory_folder, version
from ratchet.components.inference.torch import TorchEngine
from ratchet.components.models.load import load_policy, load_tokenizer, save_model
from ratchet.components.models.tiny import train_tiny
from ratchet.components.recipes.plain_values import plain
from ratchet.components.recipes.profile import Profile, Vllm
from ratchet.components.training.torch import TorchLearner
from ratchet.components.types import Group, Prompt, Request, Trajectory

LOGPROBS = frozenset({"logprobs"})
GROUPS = [Group(Prompt("p", ()), (Trajectory((), {"tokens": [1, 5, 6, 7]}, [False, True, True, True]),))]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("tiny")
    train_tiny(path, steps=2, hidden=64, layers=2, batch=8)
    return path


@pytest.fixture
def memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder in place of /dev/shm."""
    monkeypatch.setattr(live, "MEMORY", tmp_path / "memory")
    (tmp_path / "memory").mkdir()
    yield tmp_path / "memory"
    for lock in live._KEPT:
        lock.release()
    live._KEPT.clear()


class Sharded:
    """A learner whose tensors an engine cannot share, as DeepSpeed's."""

    def __init__(self, path: Path) -> None:
        self.learner = TorchLearner(path)
        self.model, self.save = self.learner.model, self.learner.save

    def change(self) -> None:
        with torch.no_grad():
            for weight in self.model.parameters():
                weight.mul_(1.1)


def profile(**options: Any) -> dict[str, Any]:
    return plain(Profile(threads=1, max_num_seqs=4, **options))


def folders(memory: Path) -> list[Path]:
    return [path for path in memory.iterdir() if path.is_dir()]


def test_an_engine_follows_through_memory_and_writes_nothing_to_the_work_folder(
    tiny: Path, memory: Path, tmp_path: Path
) -> None:
    learner = Sharded(tiny)
    engine, refresh = live_engine(profile(), learner, tmp_path / "current", "policy")
    before = engine.weights
    learner.change()
    assert engine.score(GROUPS, LOGPROBS) == TorchEngine(tiny).score(GROUPS, LOGPROBS)
    refresh()
    learner.save(tmp_path / "saved")
    saved = TorchEngine(tmp_path / "saved")
    assert engine.score(GROUPS, LOGPROBS) == saved.score(GROUPS, LOGPROBS)
    requests = [Request((1, 5, 6), max_tokens=6, seed=3)]
    assert [s.tokens for s in engine.generate(requests)[0]] == [s.tokens for s in saved.generate(requests)[0]]
    assert engine.weights == version(tmp_path / "saved") != before
    assert len(folders(memory)) == 1 and not (tmp_path / "current").exists()


def test_without_room_in_memory_the_work_folder_holds_the_weights(
    tiny: Path, memory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Containers have 64 MB there by default."""
    room = live.shutil.disk_usage(memory)
    size = 4 * sum(p.numel() for p in load_policy(tiny).parameters())
    monkeypatch.setattr(live.shutil, "disk_usage", lambda path: room._replace(free=2 * size))
    engine, _ = live_engine(profile(), Sharded(tiny), tmp_path / "current", "policy")
    assert (tmp_path / "current" / "config.json").exists() and not folders(memory)
    assert engine.score(GROUPS, LOGPROBS) == TorchEngine(tiny).score(GROUPS, LOGPROBS)


def test_a_server_that_was_not_started_here_reads_the_work_folder(
    tiny: Path, memory: Path, tmp_path: Path
) -> None:
    options = profile(engine="vllm", vllm=Vllm(server="http://other:8000"))
    live_engine(options, Sharded(tiny), tmp_path / "current", "policy")
    assert (tmp_path / "current" / "config.json").exists() and not folders(memory)


def test_a_folder_goes_with_its_process_and_that_of_a_killed_one_at_the_next_call(
    memory: Path, tmp_path: Path
) -> None:
    code = (
        "import os, sys; from pathlib import Path; from ratchet.components.inference import live;"
        "live.MEMORY = Path(sys.argv[1]); print(live.memory_folder(1), flush=True);"
        "sys.argv[2] == 'killed' and os.kill(os.getpid(), 9)"
    )

    def run(how: str) -> Path:
        done = subprocess.run([sys.executable, "-c", code, str(memory), how], capture_output=True, text=True)
        return Path(done.stdout.strip())

    assert not run("ends").exists() and not folders(memory)
    child = multiprocessing.get_context("fork").Process(target=memory_folder, args=(1,))
    child.start()
    child.join()
    assert child.exitcode == 0 and not folders(memory)
    abandoned = run("killed")
    assert abandoned.is_dir()
    used = memory_folder(1)
    assert used is not None and folders(memory) == [used], "the abandoned one is gone"
    assert memory_folder(1) != used and used.is_dir(), "one in use stays"


def test_weights_in_bfloat16_are_half_the_size_and_load_as_the_rounded_ones(
    tiny: Path, tmp_path: Path
) -> None:
    model = load_policy(tiny)
    save_model(model, load_tokenizer(tiny), tmp_path, torch.bfloat16)
    rounded = {name: w.bfloat16().float() for name, w in model.state_dict().items()}
    loaded = load_policy(tmp_path).state_dict()
    assert loaded.keys() == rounded.keys() and all(torch.equal(loaded[n], rounded[n]) for n in rounded)
    full, half = ((path / "model.safetensors").stat().st_size for path in (tiny, tmp_path))
    assert half == pytest.approx(full / 2, rel=0.1), "a tied output layer is written once"


def test_the_version_depends_on_every_weight(tiny: Path, tmp_path: Path) -> None:
    model = load_policy(tiny)
    save_model(model, load_tokenizer(tiny), tmp_path / "same")
    assert version(tmp_path / "same") == version(tiny)
    with torch.no_grad():
        next(iter(model.parameters()))[0, 0] += 1e-3
    save_model(model, load_tokenizer(tiny), tmp_path / "other")
    assert version(tmp_path / "other") != version(tiny)
