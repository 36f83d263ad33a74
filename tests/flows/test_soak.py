"""A small soak, and proof that the soak would notice. (The flow killed: test_resume.py. A stage killed: test_launch.py.)"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from flows.soak.faults import FAULTS, Trial
from flows.soak.trials import REMOVE, Soak, Tally, Truth, _differences, _unexplained

ROOT = Path(__file__).resolve().parents[2]
RUN = """
import sys
from pathlib import Path
from components.errors import RatchetError
from tasks.pipeline import Pipeline
pipeline = Pipeline.open("sft", home=Path(sys.argv[1]), profile="soak", overrides=sys.argv[2:])
try:
    for name in list(pipeline.stages)[:-1]:
        pipeline.make(name)
except RatchetError as error:
    sys.exit(f"error: {error}")
"""
OPTIONS = ["sft.limit=96", "sft.fit.save_every=1"]


@pytest.fixture(scope="module")
def base(tiny_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home in which everything up to SFT is made: a trial is then the training alone."""
    from tasks.pipeline import Pipeline

    home = tmp_path_factory.mktemp("base") / "home"
    pipeline = Pipeline.open("sft", home=home, profile="soak", overrides=OPTIONS)
    made = Pipeline.open("sft", home=tiny_home, profile="test").artifact("model_policy").path
    shutil.copytree(made, home / "store" / made.name)
    for name in ("model_policy", "raw", "drafts", "curated"):
        pipeline.make(name)
    return home


def test_a_small_soak(base: Path, tmp_path: Path) -> None:
    soak = Soak(tmp_path, lambda home: [sys.executable, "-c", RUN, str(home), *OPTIONS], None, base, env={"PYTHONPATH": str(ROOT)})
    ((_, complaints, tally),) = soak.trials(["checkpoint"], 1)
    assert soak.truth is not None and len(soak.truth.weights) == 2 and soak.truth.steps
    assert not complaints and (tally.tried, tally.survived) == (1, 1)
    assert any("the checkpoint at" in sentence and "remove" in sentence for sentence in tally.sentences), tally.sentences


def test_it_would_notice(tmp_path: Path) -> None:
    truth = Truth({"sft/model.safetensors": "a"}, frozenset({("sft", 1, "loss"), ("sft", 2, "loss")}), frozenset({("sft", "loss", 1)}))
    assert not _differences(truth, truth)
    assert "weights differ" in _differences(truth, Truth({"sft/model.safetensors": "b"}, truth.steps, truth.points))[0]
    assert "weights differ" in _differences(truth, Truth({}, truth.steps, truth.points))[0]
    assert "1 metric values are lost" in _differences(truth, Truth(truth.weights, frozenset({("sft", 1, "loss")}), truth.points))[0]
    assert "1 points are not in MLflow" in _differences(truth, Truth(truth.weights, truth.steps, frozenset()))[0]
    log = tmp_path / "log"
    for text, known in (("error: the disk is full\n", True), ("", False), ("Traceback (most recent call last)\nerror: x\n", False),
                        ("error: a\nerror: b\n", False)):
        log.write_text(text)
        assert (not _unexplained(1, log, False, Tally())) == known, text
    assert not _unexplained(-9, log, True, Tally()) and not _unexplained(0, log, False, Tally())


def test_an_orphan_is_known_by_its_mark_and_a_flipped_byte_is_one(tmp_path: Path) -> None:
    import os
    import random

    from flows.soak.faults import MARK, flip, wait_for_none

    orphan = subprocess.Popen(["sleep", "600"], env={**os.environ, MARK: "here"})
    file = tmp_path / "store" / "sft-1" / "a.parquet"
    file.parent.mkdir(parents=True)
    file.write_bytes(bytes(100))
    trial = Trial(tmp_path, "here", random.Random(0), process=orphan)
    assert trial.processes() == [orphan.pid] and not Trial(tmp_path, "her", random.Random(0)).processes()
    assert flip("*/*.safetensors")(trial) is None and orphan.poll() is None
    assert "a.parquet" in str(flip("*/*.parquet")(trial))
    assert orphan.wait(10) and sum(b.bit_count() for b in file.read_bytes()) == 1 and not wait_for_none(trial, 0.0)


def test_what_an_error_tells_its_reader_to_remove_is_found() -> None:
    assert (found := REMOVE.search("error: /a/b.parquet is damaged: x; remove /a and run again to make it anew")) and found.group(1) == "/a"
    assert set(FAULTS) >= {"flow", "stage", "prefect", "mlflow", "network", "disk", "checkpoint", "parquet", "download"}
    assert re.fullmatch(r"[a-z]+", "".join(FAULTS))


@pytest.mark.slow
def test_a_larger_soak_with_real_servers(tmp_path: Path) -> None:
    """Every fault against the whole online pipeline: `ratchet soak`, as its users call it."""
    done = subprocess.run([sys.executable, "-m", "flows.cli", "soak", "--home", str(tmp_path), "--tries", "2"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert all(name in done.stdout for name in FAULTS)
