"""Multi-node ranks of one stage on two simulated machines: `launch` in one process, `ratchet join` in
another.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ratchet.components.errors import StageError
from ratchet.components.models.load import load_policy
from ratchet.components.recipes.plain_values import plain
from ratchet.components.recipes.recipe import load
from ratchet.components.stages.run import as_request
from ratchet.components.types import Artifact
from ratchet.tasks.machine.provenance import code_versions
from ratchet.tasks.process.joining import jobs, rejection_reason
from ratchet.tasks.process.launch import launch
from ratchet.tasks.process.ranks import JOB, Job, execute_on_ranks

ROOT = Path(__file__).resolve().parents[3]
two_machines = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="the extra `scale` is not installed"
)

JOINED = f"log.{socket.gethostname()}.log"

LEAD = """
import json, pathlib, sys
from ratchet.components.errors import RatchetError
from ratchet.tasks.process.launch import launch
try:
    launch(json.loads(pathlib.Path(sys.argv[1]).read_text()), pathlib.Path(sys.argv[2]))
    print("made")
except RatchetError as error:
    print(f"{type(error).__name__}: {error}")
"""


OTHERWISE = """
import time
import ratchet.components.training.ranks
from ratchet.components.errors import ContractError
def join(was=ratchet.components.training.ranks.join):
    {}
ratchet.components.training.ranks.join = join
"""


def request(home: Path, inputs: dict[str, Artifact], epochs: int = 3, **profile: Any) -> dict[str, Any]:
    """Four steps of `sft` an epoch in a home, with a checkpoint after every second."""
    changes = [
        "sft.validation=null",
        "sft.fit.batch=8",
        f"sft.fit.epochs={epochs}",
        "sft.fit.save_every=2",
        "sft.fit.learning_rate=3e-3",
    ]
    recipe, sizes = load("sft", profile="test", overrides=changes)
    work = home.resolve() / "store" / ".work" / "sft-a"
    for folder in ("product", "progress"):
        (work / folder).mkdir(parents=True, exist_ok=True)
    return as_request(
        "sft",
        {
            **plain(recipe.sft),
            "where": "sft",
            "seed": 0,
            "profile": plain(dataclasses.replace(sizes, launch="child", **profile)),
        },
        inputs,
        work,
    )


class Place:
    """A home, the leading process and the joined process; their output is in `lead.out`, `join.out` and the
    stage's log.
    """

    def __init__(self, folder: Path, inputs: dict[str, Artifact]) -> None:
        self.folder, self.inputs, self.home = folder, inputs, folder / "home"
        self.work = self.home / "store" / ".work" / "sft-a"
        self.metrics = self.work / "product" / "metrics.jsonl"
        self.started: list[subprocess.Popen[str]] = []

    def start(self, name: str, *command: str, code: Path = ROOT, **env: str) -> subprocess.Popen[str]:
        with (self.folder / f"{name}.out").open("w") as out:
            self.started.append(
                subprocess.Popen(
                    [sys.executable, *command],
                    stdout=out,
                    stderr=subprocess.STDOUT,
                    text=True,
                    cwd=code,
                    env={
                        **os.environ,
                        "PYTHONPATH": str(code / "infra" / "package"),
                        "RATCHET_ADDRESS": "127.0.0.1",
                        **env,
                    },
                )
            )
        return self.started[-1]

    def lead(self, epochs: int = 3, **env: str) -> subprocess.Popen[str]:
        job = request(self.home, self.inputs, epochs, learner="deepspeed", ranks=2, machines=2, zero_stage=2)
        (self.folder / "request.json").write_text(json.dumps(job))
        return self.start(
            "lead", "-c", LEAD, str(self.folder / "request.json"), str(self.folder / "log"), **env
        )

    def join(self, first: str = "was()", code: Path = ROOT) -> subprocess.Popen[str]:
        """Start `ratchet join`; its ranks execute `first` before they connect."""
        (self.folder / "sitecustomize.py").write_text(OTHERWISE.format(first))
        return self.start(
            "join",
            "-m",
            "ratchet.flows.cli",
            "join",
            "--home",
            str(self.home),
            code=code,
            PYTHONPATH=f"{self.folder}{os.pathsep}{code / 'infra' / 'package'}",
        )

    def output(self, name: str) -> str:
        return (self.folder / f"{name}.out").read_text()

    def ranks(self) -> list[int]:
        """The process of each rank that was ever started, as the logs of both machines name them."""
        return [
            int(pid)
            for log in ("log", JOINED)
            if (self.folder / log).exists()
            for pid in re.findall(r"rank \d of \d: process (\d+)", (self.folder / log).read_text())
        ]

    def steps(self) -> list[int]:
        with contextlib.suppress(FileNotFoundError):
            return [
                json.loads(line)["step"]
                for line in self.metrics.read_text().splitlines()
                if line.endswith("}")
            ]
        return []


LONG = 900.0  # seconds: for what happens in a few, on a machine that may be busy


def until(true: Callable[[], Any], seconds: float = LONG) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.02)
    return found


def gone(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.fixture
def place(tmp_path: Path, inputs: dict[str, Artifact]) -> Iterator[Place]:
    cluster = Place(tmp_path, inputs)
    yield cluster
    for process in cluster.started:
        process.kill()
        process.wait()
    until(lambda: gone(cluster.ranks()))


@two_machines
def test_two_nodes_train_the_same_weights_as_one_process(place: Place) -> None:
    joined, leader = place.join(), place.lead()
    assert leader.wait(LONG) == 0 and place.output("lead") == "made\n", place.output("lead")
    assert place.steps() == list(range(1, 13)) and gone(place.ranks()) and len(place.ranks()) == 2
    assert not (place.work / JOB).exists() and joined.poll() is None
    until(lambda: place.output("join").count("stage 'sft'") == 2)
    assert re.search(r"stage 'sft' of \S+: 1 of 2 ranks here \(log: .*\)\n.*: done", place.output("join")), (
        place.output("join")
    )
    launch(request(place.folder / "alone", place.inputs), place.folder / "log", inline=True)
    ours, theirs = (
        load_policy(home / "store/.work/sft-a/product").state_dict()
        for home in (place.home, place.folder / "alone")
    )
    assert max(float((ours[name] - theirs[name]).abs().max()) for name in theirs) < 1e-4
    joined.terminate()
    assert joined.wait(LONG) == 130 and "Stopped." in place.output("join")


@two_machines
@pytest.mark.slow
@pytest.mark.parametrize(
    ("sign", "why"),
    [(signal.SIGKILL, r"another machine may be gone"), (signal.SIGTERM, r"`ratchet join` was stopped on ")],
)
def test_lost_node_ends_the_stage_and_the_next_run_resumes(place: Place, sign: int, why: str) -> None:
    joined, leader = place.join(), place.lead(epochs=20)
    until(lambda: len(place.steps()) >= 5)
    joined.send_signal(sign)
    joined.wait(LONG)
    leader.wait(LONG)
    assert re.match(
        rf"StageError: stage 'sft': .*{why}.*; the other ranks were stopped; run again to continue",
        place.output("lead"),
    ), place.output("lead")
    until(lambda: gone(place.ranks()))
    before = place.steps()
    assert list((place.work / "progress").glob("checkpoint-*")) and len(before) < 80
    place.join()
    assert place.lead(epochs=20).wait(LONG) == 0 and place.output("lead") == "made\n"
    assert place.steps() == list(range(1, 81)), "a step is missing or stands twice"


@two_machines
@pytest.mark.slow
def test_error_names_the_host_of_a_killed_remote_rank(place: Place) -> None:
    place.join()
    leader = place.lead(epochs=20)
    until(lambda: len(place.steps()) >= 5)
    number, pid = re.findall(r"rank (\d) of 2: process (\d+)", (place.folder / JOINED).read_text())[-1]
    os.kill(int(pid), signal.SIGKILL)
    leader.wait(LONG)
    assert re.match(
        rf"StageError: stage 'sft': rank {number} of 2 on {socket.gethostname()} was killed by SIGKILL; "
        rf".*{JOINED}\)$",
        place.output("lead"),
    )
    assert gone(place.ranks())


@two_machines
@pytest.mark.slow
def test_remote_rank_error_is_the_stages_error(place: Place) -> None:
    place.join(first="was(); raise ContractError('this machine alone disagrees')")
    place.lead().wait(LONG)
    assert place.output("lead") == "ContractError: this machine alone disagrees\n" and gone(place.ranks())
    until(lambda: place.output("join").rstrip().endswith(": failed"))
    assert len(place.output("join").splitlines()) == 3, "what it waits for, what it runs, how that ended"


@two_machines
@pytest.mark.slow
def test_killed_leader_leaves_no_ranks_and_the_node_joins_the_next_run(place: Place) -> None:
    joined, leader = place.join(), place.lead(epochs=20)
    until(lambda: len(place.steps()) >= 5)
    leader.kill()
    leader.wait()
    until(lambda: gone(place.ranks()))
    assert (place.work / JOB).exists() and joined.poll() is None, (
        "what is tested is a job that nobody withdrew"
    )
    assert place.lead(epochs=20).wait(LONG) == 0 and place.output("lead") == "made\n"
    assert place.steps() == list(range(1, 81)), "a step is missing or stands twice"


@two_machines
@pytest.mark.slow
def test_connection_timeout_names_the_environment_variable(place: Place) -> None:
    place.join(first="time.sleep(60)")
    place.lead(RATCHET_CONNECT_SECONDS="3").wait(LONG)
    assert re.match(
        r"StageError: stage 'sft': rank \d of 2 on \S+ could not connect to all ranks within 3 s; "
        r"set GLOO_SOCKET_IFNAME",
        place.output("lead"),
    )
    until(lambda: gone(place.ranks()))


@two_machines
@pytest.mark.slow
def test_nodes_with_different_code_are_refused(place: Place) -> None:
    other = place.folder / "code"
    for folder in ("components", "tasks", "flows", "infra/package"):
        shutil.copytree(
            ROOT / folder, other / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    (other / "tasks" / "process" / "ranks.py").open("a").write("# changed\n")
    place.join(code=other)
    place.lead().wait(LONG)
    assert re.match(
        r"ContractError: ratchet is \w+ on \S+ and \w+ on \S+; all machines of a stage need the same version",
        place.output("lead"),
    )
    assert code_versions()["ratchet"] in place.output("lead")


# --- without processes
# ----------------------------------------------------------------------------------------------------


def test_too_few_nodes_is_an_error_with_the_join_command(
    tmp_path: Path,
    inputs: dict[str, Artifact],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("RATCHET_ADDRESS", "127.0.0.1")
    monkeypatch.setattr("ratchet.tasks.process.ranks.JOIN_SECONDS", 1)
    job = request(tmp_path, inputs, learner="deepspeed", ranks=6, machines=3)
    with pytest.raises(StageError, match=r"'sft'.*3 machines.*1 s.*ratchet join") as caught:
        execute_on_ranks(job, str(tmp_path / "log"))
    assert (
        not caught.value.retryable
        and f"waiting for 2 more machines: run `ratchet join --home {tmp_path}` on each"
        in capsys.readouterr().out
    )
    assert not jobs(tmp_path), "the job is withdrawn"


def test_join_reports_why_a_node_is_rejected(tmp_path: Path, inputs: dict[str, Artifact]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        job = Job(
            request(tmp_path, inputs, learner="deepspeed", ranks=6, machines=3),
            "log",
            6,
            3,
            f"127.0.0.1:{server.getsockname()[1]}",
        )
        file = Path(job.request["work"]) / JOB
        assert job.ranks_per_machine == 2 and rejection_reason(file, job) == ""
        assert rejection_reason(tmp_path / "elsewhere/store/.work/sft-a" / JOB, job) == (
            f"the home is {tmp_path} on {job.leader} and {tmp_path / 'elsewhere'} here; the path must be "
            "the same on both"
        )
    assert f"{job.endpoint} does not answer" in rejection_reason(file, job), "the job of a dead leader"


def test_jobs_are_ordered_by_age_and_other_files_are_skipped(tmp_path: Path) -> None:
    for name, since in (("b", 2), ("a", 3), ("c", 1)):
        (tmp_path / "store/.work" / name).mkdir(parents=True)
        (tmp_path / "store/.work" / name / JOB).write_text(
            json.dumps({**dataclasses.asdict(Job({}, "", 2, 2, "")), "since": since})
        )
    (tmp_path / "store/.work/d").mkdir()
    (tmp_path / "store/.work/d" / JOB).write_text("{")
    assert [file.parent.name for file, _ in jobs(tmp_path)] == ["c", "b", "a"]
