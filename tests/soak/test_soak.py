"""A small soak test, and proof that it detects unsound programs. (Killed flow:
test_schedules_resume_from_their_state.py. Killed stage: test_launch.py.)
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ratchet.components.errors import StoreError
from ratchet.components.storage.run_directory import RunDirectory
from ratchet.components.storage.store import Store, digest
from tests.soak.faults import FAULTS, MARK, Trial, flip, kill_engine, wait_for_none
from tests.soak.trials import Soak, Tally, Truth, _differences, _look, _points, _unexplained

ROOT = Path(__file__).resolve().parents[2]
PROFILE = str(ROOT / "tests" / "soak" / "soak.yaml")
RUN = f"""
import sys
from pathlib import Path
from ratchet.components.errors import RatchetError
from ratchet.tasks.pipeline import Pipeline
pipeline = Pipeline.open("sft", home=Path(sys.argv[1]), profile={PROFILE!r}, overrides=sys.argv[2:])
try:
    for name in list(pipeline.stages)[:-1]:
        pipeline.make(name)
except RatchetError as error:
    sys.exit(f"error: {{error}}")
"""
VLLM = """
threads: 1
tokens_per_microbatch: 1024
max_num_seqs: 64
engine: vllm
vllm: {{python: {python}, dtype: float32, max_model_len: 512, cache_gb: 0.25, eager: true}}
"""
OPTIONS = ["sft.limit=96", "sft.fit.save_every=1"]


TOY = """
import hashlib, json, sys, time
from pathlib import Path
from ratchet.components.errors import DamageError, RatchetError
from ratchet.components.storage.run_directory import RunDirectory
from ratchet.components.storage.store import Store, disk_errors, write_atomic

def sha(text):
    return hashlib.sha256(text.encode()).hexdigest()

def make(stage, product, steps):
    try:
        if (found := store.get(stage, sha(stage))) is not None:
            store.verify(found)
            return run.link(stage, found.path)
    except DamageError as error:
        print(error)
    with store.working(stage, sha(stage)) as work:
        saved, state = work.progress / "checkpoint-1" / "state", {"step": 0, "value": "", "lines": []}
        if saved.exists():
            digest, _, body = saved.read_bytes().partition(b" ")
            if hashlib.sha256(body).hexdigest().encode() == digest:
                state = json.loads(body)
            else:
                print(f"the checkpoint at {saved.parent} is damaged: it is not what was saved")
        for step in range(state["step"] + 1, steps + 1):
            state = {"step": step, "value": sha(state["value"] + str(step)), "lines": [*state["lines"], {"step": step, "metrics": {"loss": 1 / step}}]}
            body = json.dumps(state)
            write_atomic(saved, f"{sha(body)} {body}")
            with disk_errors("writing rows"):
                (work.progress / "rows").write_bytes(state["value"].encode() * 2000)
            time.sleep(0.02)
        with disk_errors("writing the product"):
            (work.product / product).write_bytes(state["value"].encode() * 100)
        write_atomic(work.metrics, "".join(json.dumps(line) + chr(10) for line in state["lines"]))
        run.link(stage, store.publish(work, stage, sha(stage), "weights", [], {}).path)

store, run = Store(Path(sys.argv[1])), RunDirectory(Path(sys.argv[1]), "toy")
try:
    make("rollout", "groups.parquet", 10)
    make("sft", "model.safetensors", 40)
except RatchetError as error:
    sys.exit(f"error: {error}")
"""  # noqa: E501


MANY = 16
"""Trials at most: on a busy machine a moment drawn from the undisturbed run's duration may come when nothing
is left to be damaged.
"""


def toy_soak(folder: Path, program: str = TOY) -> Soak:
    (folder / "base").mkdir()
    return Soak(
        folder,
        lambda home: [sys.executable, "-c", program, str(home)],
        None,
        folder / "base",
        env={"PYTHONPATH": str(ROOT / "infra" / "package")},
    )


def test_resumable_program_survives_every_fault(tmp_path: Path) -> None:
    """The soak itself, on a program of milliseconds that keeps the store's rules."""
    soak = toy_soak(tmp_path)
    for names, count, sentences in (
        (["flow"], 2, ""),
        (["disk"], MANY, "the disk is full|ulimit -f"),
        (["checkpoint"], MANY, "the checkpoint at"),
        (["parquet"], MANY, "groups.parquet is damaged"),
    ):
        for name, _, tally in soak.trials(names, count):
            assert not tally.complaints and tally.survived == tally.tried, f"{name}: {tally}"
            if sentences and re.search(sentences, " ".join(tally.sentences)):
                break
        else:
            assert not sentences and tally.tried >= 1, f"{name}: {tally}"


def test_trial_is_repeated_if_the_run_ended_before_the_fault(tmp_path: Path) -> None:
    """On a busy machine the undisturbed run may be slower than the trial; a trial without a fault proves
    nothing.
    """
    soak = toy_soak(tmp_path)
    soak.undisturbed()
    soak.seconds *= 1000
    assert [
        (complaints, tally.tried, tally.survived)
        for _, complaints, tally in soak.trials(["checkpoint", "flow"], 1)
    ] == [([], 1, 1)] * 2


@pytest.mark.parametrize(
    ("fault", "sound", "broken", "complaint"),
    [
        (
            "checkpoint",
            "hashlib.sha256(body).hexdigest().encode() == digest",
            "True",
            "nothing was said of the damage",
        ),
        (
            "checkpoint",
            "hashlib.sha256(body).hexdigest().encode() == digest",
            "True",
            "resumed|differ|is not a step",
        ),
        ("parquet", "store.verify(found)", "pass", "SHA-256 differs"),
        (
            "flow",
            'sha(state["value"] + str(step))',
            'sha(state["value"] + str(time.time()))',
            "weights differ",
        ),
        ("flow", "state = json.loads(body)", 'state = {**json.loads(body), "lines": []}', "values are lost"),
        ("disk", "except RatchetError as error", "except ZeroDivisionError as error", "0 sentences why"),
    ],
)
def test_program_without_resume_is_detected(
    fault: str, sound: str, broken: str, complaint: str, tmp_path: Path
) -> None:
    assert sound in TOY
    found: list[str] = []
    for _, complaints, _ in toy_soak(tmp_path, TOY.replace(sound, broken)).trials([fault], MANY):
        found += complaints
        if any(re.search(complaint, complaint_text) for complaint_text in complaints):
            return
    raise AssertionError(found)


@pytest.fixture(scope="module")
def base(tiny_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home in which everything up to SFT is made: a trial is then the training alone."""
    from ratchet.tasks.pipeline import Pipeline

    home = tmp_path_factory.mktemp("base") / "home"
    pipeline = Pipeline.open("sft", home=home, profile=PROFILE, overrides=OPTIONS)
    model = Pipeline.open("sft", home=tiny_home, profile="test").artifact("model_policy").path
    shutil.copytree(model, home / "store" / model.name)
    for name in ("model_policy", "raw", "drafts", "curated"):
        pipeline.make(name)
    return home


@pytest.mark.slow  # a minute: a whole run, killed and repeated
def test_small_soak_passes(base: Path, tmp_path: Path) -> None:
    soak = Soak(
        tmp_path,
        lambda home: [sys.executable, "-c", RUN, str(home), *OPTIONS],
        None,
        base,
        env={"PYTHONPATH": str(ROOT / "infra" / "package")},
    )
    ((_, complaints, tally),) = soak.trials(["checkpoint"], 1)
    assert soak.truth is not None and len(soak.truth.weights) == 2 and soak.truth.steps
    assert not complaints and (tally.tried, tally.survived) == (1, 1)
    assert any("the checkpoint at" in sentence and "restarts" in sentence for sentence in tally.sentences), (
        tally.sentences
    )


def test_invalid_metrics_line_is_reported(tmp_path: Path) -> None:
    """Otherwise a flipped byte in a key would end the whole soak with a KeyError."""
    store = Store(tmp_path)
    for text, error in (
        ('{"stap": 1, "metrics": {}}', "KeyError"),
        ("{", "JSONDecodeError"),
        ("[1]", "TypeError"),
    ):
        with store.working("sft", digest(text)) as work:
            work.metrics.write_text(text)
            (work.product / "model.safetensors").write_text("x")
            RunDirectory(tmp_path, "run").link(
                "sft", store.publish(work, "sft", digest(text), "weights", [], {}).path
            )
        with pytest.raises(StoreError, match=rf"a line is not a step and its metrics .{error}"):
            _look(tmp_path)


def test_metric_comparison_ignores_timestamps(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "mlflow.db")) as base, base:
        base.executescript(
            "create table runs (run_uuid, name); create table tags (run_uuid, key, value); create table "
            "metrics (run_uuid, key, step);"
            "insert into runs values (1, 'mine'), (2, 'other'); insert into metrics values (1, 'loss', "
            "3), (1, 'system/cpu', 30), (2, 'loss', 4);"
            f"insert into tags values (1, 'ratchet.key', '{tmp_path}/runs/a'), (2, 'ratchet.key', "
            f"'{tmp_path}s/runs/a');"
        )
    assert _points(tmp_path / "mlflow.db", tmp_path) == {("mine", "loss", 3)}


def test_soak_detects_a_planted_failure(tmp_path: Path) -> None:
    truth = Truth(
        {"sft/model.safetensors": "a"},
        frozenset({("sft", 1, "loss"), ("sft", 2, "loss")}),
        frozenset({("sft", "loss", 1)}),
    )
    assert not _differences(truth, truth)
    assert (
        "weights differ"
        in _differences(truth, Truth({"sft/model.safetensors": "b"}, truth.steps, truth.points))[0]
    )
    assert "weights differ" in _differences(truth, Truth({}, truth.steps, truth.points))[0]
    assert (
        "1 metric values are lost"
        in _differences(truth, Truth(truth.weights, frozenset({("sft", 1, "loss")}), truth.points))[0]
    )
    assert (
        "1 points are not in MLflow" in _differences(truth, Truth(truth.weights, truth.steps, frozenset()))[0]
    )
    log = tmp_path / "log"
    for text, known in (
        ("error: the disk is full\n", True),
        ("", False),
        ("Traceback (most recent call last)\nerror: x\n", False),
        ("error: a\nerror: b\n", False),
    ):
        log.write_text(text)
        assert (not _unexplained(1, log, False, Tally())) == known, text
    assert not _unexplained(-9, log, True, Tally()) and not _unexplained(0, log, False, Tally())


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gets a disk of its own")
def test_terminated_soak_leaves_no_ram_disk(tmp_path: Path) -> None:
    program = (
        "import random, sys, time; from pathlib import Path; from tests.soak.faults import FAULTS, "
        "Trial, prepared\n"
        "with prepared(FAULTS['disk'], Trial(Path(sys.argv[1]), 'x', random.Random(0))): "
        "print(flush=True); time.sleep(60)"
    )
    home = tmp_path / "home"
    home.mkdir()
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(home)],
        env={**os.environ, "PYTHONPATH": str(ROOT / "infra" / "package")},
        stdout=subprocess.PIPE,
    )
    assert child.stdout and child.stdout.readline() and home.is_mount()
    child.terminate()
    assert child.wait(20) == 128 + signal.SIGTERM and not home.is_mount()


def test_orphans_are_found_by_their_mark_and_flips_change_one_byte(tmp_path: Path) -> None:
    orphan = subprocess.Popen(
        ["cat"], env={**os.environ, MARK: "here"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    os.write(
        orphan.stdin.fileno(), b"x"
    )  # its echo: between fork and exec its environment is not yet readable
    os.read(orphan.stdout.fileno(), 1)
    file = tmp_path / "store" / "sft-1" / "a.parquet"
    file.parent.mkdir(parents=True)
    file.write_bytes(bytes(100))
    trial = Trial(tmp_path, "here", random.Random(0), process=orphan)
    assert trial.processes() == [orphan.pid] and not Trial(tmp_path, "her", random.Random(0)).processes()
    assert flip("*/*.safetensors")(trial) is None and orphan.poll() is None
    run = tmp_path / "runs" / "a" / "run.json"
    run.parent.mkdir(parents=True)
    run.write_text('{"state": "finished"}')
    assert flip("*/*.parquet")(trial) is None and orphan.poll() is None, "nothing reads it again"
    run.write_text('{"state": "running"}')
    assert "a.parquet" in str(flip("*/*.parquet")(trial))
    assert (
        orphan.wait(10)
        and sum(b.bit_count() for b in file.read_bytes()) == 1
        and not wait_for_none(trial, 0.0)
    )


def test_engine_fault_kills_any_process_of_the_vllm_session() -> None:
    """Two processes of one session, the first named as vLLM's server is, beside one of another session that
    must live on.
    """
    ended = {}
    for seed in range(8):
        with contextlib.ExitStack() as stack:

            def start(*command: str, stack: contextlib.ExitStack = stack) -> subprocess.Popen[bytes]:
                child = subprocess.Popen(
                    command,
                    env={**os.environ, MARK: "engines"},
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    start_new_session=True,
                )
                stack.callback(child.wait)
                stack.callback(child.kill)
                return child

            stage = start("cat")
            trial = Trial(Path("/"), "engines", random.Random(seed), process=stage)
            assert kill_engine(trial) is None
            served = start("sh", "-c", "sleep 60 & echo $!; wait", "vllm.entrypoints.openai.api_server")
            assert served.stdout
            core = int(served.stdout.readline())
            stack.callback(_end, core)
            struck = int(str(kill_engine(trial)).split()[1])
            assert struck in (served.pid, core) and stage.poll() is None
            ended[struck == core] = True
    assert ended == {False: True, True: True}, "chance never took one of the two"


def _end(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def test_engine_faults_need_a_profile_with_vllm(tmp_path: Path) -> None:
    from ratchet.components.errors import RecipeError
    from tests.soak.__main__ import soak

    with pytest.raises(RecipeError, match=r"--fault engine: .*soak\.yaml.*vLLM"):
        soak(home=tmp_path, fault=["engine"])


def test_fault_option_selects_faults() -> None:
    assert set(FAULTS) >= {
        "flow",
        "stage",
        "prefect",
        "mlflow",
        "network",
        "disk",
        "checkpoint",
        "parquet",
        "download",
    }
    assert re.fullmatch(r"[a-z]+", "".join(FAULTS))


@pytest.mark.slow
def test_soak_with_real_servers(tmp_path: Path) -> None:
    """Every fault against the whole online pipeline: as `make soak` runs it."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.soak", "--home", str(tmp_path), "--tries", "2"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert all(name in done.stdout for name, fault in FAULTS.items() if not fault.engine)


@pytest.mark.slow
@pytest.mark.skipif(
    not os.environ.get("RATCHET_VLLM_PYTHON"), reason="RATCHET_VLLM_PYTHON names no environment with vllm"
)
def test_soak_kills_vllm(tmp_path: Path) -> None:
    """One round that vLLM samples; its server, or what computes behind it, dies while it does."""
    profile = tmp_path / "vllm.yaml"
    profile.write_text(VLLM.format(python=os.environ["RATCHET_VLLM_PYTHON"]))
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.soak",
            "--home",
            str(tmp_path),
            "--profile",
            str(profile),
            "--set",
            "online.rounds=1",
            "--fault",
            "engine",
            "--tries",
            "2",
        ],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "engine: 2 of 2" in done.stdout, done.stdout[-4000:] + done.stderr[-2000:]


@pytest.mark.slow
def test_a_soak_that_is_killed_leaves_no_server_behind(tmp_path: Path) -> None:
    soak = subprocess.Popen(
        [sys.executable, "-m", "tests.soak", "--home", str(tmp_path), "--fault", "flow", "--tries", "1"],
        cwd=ROOT,
    )

    def named() -> list[int]:
        found = []
        for process in filter(lambda p: p.name.isdigit(), Path("/proc").iterdir()):
            with contextlib.suppress(OSError):  # gone meanwhile
                if (
                    str(tmp_path).encode() in (process / "cmdline").read_bytes()
                    and int(process.name) != soak.pid
                ):
                    found.append(int(process.name))
        return found

    try:
        deadline = time.monotonic() + 300
        while not named():
            assert soak.poll() is None and time.monotonic() < deadline, "no server was started"
            time.sleep(0.2)
    finally:
        soak.kill()
        soak.wait()
    deadline = time.monotonic() + 20
    while named() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert not named()
