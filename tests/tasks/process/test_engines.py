"""Stages on several engine processes: results equal to one process, killed engines, errors, resume."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ratchet.components.errors import SourceError, StageError
from ratchet.components.recipes.plain_values import plain
from ratchet.components.recipes.plan import plan
from ratchet.components.recipes.profile import Profile
from ratchet.components.recipes.recipe import load
from ratchet.components.stages.run import as_request
from ratchet.components.types import Artifact
from ratchet.tasks.process.engines import engines_of, shared_bytes, threads_per_engine
from ratchet.tasks.process.launch import launch


def request(
    does: str, work: Path, inputs: dict[str, Artifact], engines: int, **options: Any
) -> dict[str, Any]:
    for folder in ("product", "progress"):
        (work / folder).mkdir(parents=True, exist_ok=True)
    profile = plain(Profile(threads=1, max_num_seqs=8, engines=engines))
    return as_request(does, {"seed": 0, "round": 1, "profile": profile, **options}, inputs, work)


def sampling(work: Path, inputs: dict[str, Artifact], engines: int, tokens: int = 12) -> dict[str, Any]:
    """16 prompts of 4 answers, 8 at a time: 8 slices."""
    return request(
        "rollout",
        work,
        inputs,
        engines,
        data="sft",
        prompts={"name": "uniform"},
        prompts_per_round=16,
        rounds=1,
        rollout={"name": "sample", "responses_per_prompt": 4, "max_tokens": tokens},
    )


def scoring(work: Path, inputs: dict[str, Artifact], groups: Path, engines: int) -> dict[str, Any]:
    scored = {**inputs, "groups": Artifact("groups", groups, "g"), "reference": inputs["policy"]}
    return request(
        "select",
        work,
        scored,
        engines,
        select=(),
        prepare=({"name": "scoring.logprobs", "model": "reference"}, {"name": "scoring.logprobs.old"}),
    )


def table(work: Path) -> bytes:
    return (work / "product" / "groups.parquet").read_bytes()


def test_two_and_four_engines_sample_and_score_what_one_does_bit_for_bit(
    inputs: dict[str, Artifact], tmp_path: Path
) -> None:
    log = tmp_path / "log"
    for engines in (1, 2, 4):
        work = tmp_path / f"rollout-{engines}"
        found = launch(sampling(work, inputs, engines), log)
        assert found["counts"]["responses"] == 64 and found["spent"]["cpu_seconds"] > 0
        assert table(work) == table(tmp_path / "rollout-1")
        launch(scoring(tmp_path / f"select-{engines}", inputs, work / "product", engines), log)
        assert table(tmp_path / f"select-{engines}") == table(tmp_path / "select-1")
    assert set(re.findall(r"engine (\d of \d)", log.read_text())) == {
        *(f"{i} of 2" for i in (1, 2)),
        *(f"{i} of 4" for i in (1, 2, 3, 4)),
    }


def process(log: Path, engine: int) -> int:
    """Process id of an engine, once it has started."""
    while not (
        log.exists() and (found := re.findall(rf"engine {engine} of 2: process (\d+)", log.read_text()))
    ):
        time.sleep(0.005)
    return int(found[-1])


def kill_engines(log: Path, work: Path, slices: int, engines: tuple[int, ...]) -> None:
    """Stop engine 1 before it computes a slice, and kill `engines` once the other has computed `slices`."""
    os.kill(process(log, 1), signal.SIGSTOP)
    while len(list((work / "progress" / "shards").glob("*.json"))) < slices:
        time.sleep(0.005)
    for engine in engines:
        os.kill(process(log, engine), signal.SIGKILL)


def while_killing(call: Callable[[], Any], *args: Any) -> Any:
    killer = threading.Thread(target=kill_engines, args=args, daemon=True)
    killer.start()
    try:
        return call()
    finally:
        killer.join(60)


def test_slice_of_a_killed_engine_is_computed_by_another(inputs: dict[str, Artifact], tmp_path: Path) -> None:
    alone, work, log = tmp_path / "alone", tmp_path / "work", tmp_path / "log"
    launch(sampling(alone, inputs, 1), tmp_path / "alone.log")
    while_killing(lambda: launch(sampling(work, inputs, 2), log), log, work, 2, (1,))
    assert table(work) == table(alone) and "an engine process died" in log.read_text()


def test_killed_engines_are_an_error_and_the_next_attempt_keeps_finished_slices(
    inputs: dict[str, Artifact], tmp_path: Path
) -> None:
    alone, work, log = tmp_path / "alone", tmp_path / "work", tmp_path / "log"
    launch(sampling(alone, inputs, 1), tmp_path / "alone.log")
    with pytest.raises(StageError, match=r"engine processes died.*run again") as caught:
        while_killing(lambda: launch(sampling(work, inputs, 2), log), log, work, 2, (1, 2))
    assert caught.value.retryable and "\n" not in str(caught.value)
    finished = {file: file.stat().st_mtime_ns for file in (work / "progress" / "shards").glob("*.json")}
    assert 2 <= len(finished) < 8, "the kill came too late"
    launch(sampling(work, inputs, 4), log)
    assert table(work) == table(alone)
    assert finished == {file: file.stat().st_mtime_ns for file in finished}
    assert len(list((work / "progress" / "shards").glob("*.json"))) == 8


def test_engine_error_is_the_stages_error(inputs: dict[str, Artifact], tmp_path: Path) -> None:
    copy = tmp_path / "policy"
    shutil.copytree(inputs["policy"].path, copy)
    (copy / "model.safetensors").unlink()
    damaged = {**inputs, "policy": Artifact("weights", copy, "p")}
    with pytest.raises(SourceError, match="policy"):
        launch(sampling(tmp_path / "work", damaged, 2), tmp_path / "log")


def test_unexpected_engine_error_names_the_engine(inputs: dict[str, Artifact], tmp_path: Path) -> None:
    call = sampling(tmp_path / "work", inputs, 2)
    call["options"]["profile"] |= {"engine": "unknown", "vllm": None}
    with pytest.raises(StageError, match=r"stage 'rollout': engine \d of 2 on \S+ failed: TypeError.*log"):
        launch(call, tmp_path / "log")


def test_number_of_engines_is_not_part_of_the_key() -> None:
    recipe, profile = load("online_dpo", profile="test")
    one, many = (plan(recipe, dataclasses.replace(profile, engines=n)) for n in (None, 4))
    assert {n: s.key for n, s in one.items()} == {n: s.key for n, s in many.items()}
    stages = {s.does: engines_of({"does": s.does, "options": s.options}) for s in many.values()}
    assert {does for does, count in stages.items() if count == 4} >= {"rollout", "annotate", "select"}
    assert stages["optimise"] == stages["fetch_data"] == 0


def test_engines_share_the_threads_of_the_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(12)))
    assert [threads_per_engine(2, 2), threads_per_engine(8, 3), threads_per_engine(1, 4)] == [1, 2, 1]
    assert threads_per_engine(None, 4) == 3


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="Linux only")
def test_memory_that_processes_share_is_counted_once() -> None:
    """Half of 80 MB that a fork reads belongs to its parent; once it has written to them they are its own."""
    megabytes = bytearray(b"x" * 80_000_000)
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        inherited = shared_bytes()
        for at in range(0, len(megabytes), 4096):
            megabytes[at] = 0
        os.write(writer, f"{inherited} {shared_bytes()}".encode())
        os._exit(0)
    os.waitpid(child, 0)
    inherited, written = map(int, os.read(reader, 100).split())
    assert 30e6 < inherited - written < 50e6
