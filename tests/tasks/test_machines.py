"""The ranks of one stage on two machines, which are two processes here: `launch` leads in one, `ratchet join` is the other."""

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
from ratchet.components.recipe import load, plain
from ratchet.components.run import as_request
from ratchet.components.types import Artifact
from ratchet.tasks.joining import Member, calls, unfit
from ratchet.tasks.launch import launch
from ratchet.tasks.machines import CALL, Call, Leader, address, code, interface, lead

ROOT = Path(__file__).resolve().parents[2]
two_machines = pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="the extra `scale` is not installed")

LEAD = """
import json, pathlib, sys
from ratchet.components.errors import RatchetError
from ratchet.tasks.launch import launch
try:
    launch(json.loads(pathlib.Path(sys.argv[1]).read_text()), pathlib.Path(sys.argv[2]))
    print("made")
except RatchetError as error:
    print(f"{type(error).__name__}: {error}")
"""


OTHERWISE = """
import time
import ratchet.components.ranks
from ratchet.components.errors import ContractError
def join(was=ratchet.components.ranks.join):
    {}
ratchet.components.ranks.join = join
"""


def request(home: Path, inputs: dict[str, Artifact], epochs: int = 3, **profile: Any) -> dict[str, Any]:
    """Four steps of `sft` an epoch in a home, with a checkpoint after every second."""
    changes = ["sft.validation=null", "sft.fit.batch=8", f"sft.fit.epochs={epochs}", "sft.fit.save_every=2", "sft.fit.learning_rate=3e-3"]
    recipe, sizes = load("sft", profile="test", overrides=changes)
    work = home.resolve() / "store" / ".work" / "sft-a"
    for folder in ("product", "progress"):
        (work / folder).mkdir(parents=True, exist_ok=True)
    return as_request("sft", {**plain(recipe.sft), "seed": 0, "profile": plain(dataclasses.replace(sizes, launch="child", **profile))}, inputs, work)


class Place:
    """A home, who leads a stage in it, and who joined; they write to `lead.out`, `join.out` and the stage's log."""

    def __init__(self, folder: Path, inputs: dict[str, Artifact]) -> None:
        self.folder, self.inputs, self.home = folder, inputs, folder / "home"
        self.work = self.home / "store" / ".work" / "sft-a"
        self.metrics = self.work / "product" / "metrics.jsonl"
        self.started: list[subprocess.Popen[str]] = []

    def start(self, name: str, *command: str, code: Path = ROOT, **env: str) -> subprocess.Popen[str]:
        with (self.folder / f"{name}.out").open("w") as out:
            self.started.append(subprocess.Popen([sys.executable, *command], stdout=out, stderr=subprocess.STDOUT, text=True, cwd=code, env={
                **os.environ, "PYTHONPATH": str(code / "infra" / "package"), "RATCHET_ADDRESS": "127.0.0.1", "RATCHET_LOST_SECONDS": "6", **env}))
        return self.started[-1]

    def lead(self, epochs: int = 3, **env: str) -> subprocess.Popen[str]:
        asked = request(self.home, self.inputs, epochs, learner="deepspeed", ranks=2, machines=2, zero_stage=2)
        (self.folder / "request.json").write_text(json.dumps(asked))
        return self.start("lead", "-c", LEAD, str(self.folder / "request.json"), str(self.folder / "log"), **env)

    def join(self, first: str = "was()", code: Path = ROOT) -> subprocess.Popen[str]:
        """Its ranks do what `first` says where they should meet the others."""
        (self.folder / "sitecustomize.py").write_text(OTHERWISE.format(first))
        return self.start("join", "-m", "ratchet.flows.cli", "join", "--home", str(self.home), code=code, PYTHONPATH=f"{self.folder}{os.pathsep}{code / 'infra' / 'package'}")

    def said(self, name: str) -> str:
        return (self.folder / f"{name}.out").read_text()

    def ranks(self) -> list[int]:
        """The process of each rank that was ever started, as the logs of both machines name them."""
        return [int(pid) for log in ("log", "log.1.log") if (self.folder / log).exists()
                for pid in re.findall(r"rank \d of \d: process (\d+)", (self.folder / log).read_text())]

    def steps(self) -> list[int]:
        with contextlib.suppress(FileNotFoundError):
            return [json.loads(line)["step"] for line in self.metrics.read_text().splitlines() if line.endswith("}")]
        return []


def until(true: Callable[[], Any], seconds: float = 120.0) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := true()):
        assert time.monotonic() < deadline, f"not within {seconds} s"
        time.sleep(0.02)
    return found


def gone(pids: list[int]) -> bool:
    return not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.fixture
def place(tmp_path: Path, inputs: dict[str, Artifact]) -> Iterator[Place]:
    made = Place(tmp_path, inputs)
    yield made
    for process in made.started:
        process.kill()
        process.wait()
    until(lambda: gone(made.ranks()), 10)


@two_machines
def test_two_machines_make_what_one_process_makes(place: Place) -> None:
    joined, leader = place.join(), place.lead()
    assert leader.wait(180) == 0 and place.said("lead") == "made\n", place.said("lead")
    assert place.steps() == list(range(1, 13)) and gone(place.ranks()) and len(place.ranks()) == 2
    assert not (place.work / CALL).exists() and joined.poll() is None
    until(lambda: place.said("join").count("stage 'sft'") == 2)
    assert re.search(r"stage 'sft' of \S+: rank 1 of 2 here \(log: .*log\.1\.log\)\n.*: done", place.said("join")), place.said("join")
    launch(request(place.folder / "alone", place.inputs), place.folder / "log", inline=True)
    ours, theirs = (load_policy(home / "store/.work/sft-a/product").state_dict() for home in (place.home, place.folder / "alone"))
    assert max(float((ours[name] - theirs[name]).abs().max()) for name in theirs) < 1e-4
    joined.terminate()
    assert joined.wait(20) == 130 and "Stopped." in place.said("join")


@two_machines
@pytest.mark.slow
@pytest.mark.parametrize(("sign", "why"), [
    (signal.SIGKILL, "was lost: it gave no sign of life for 6 s"), (signal.SIGSTOP, "was lost: it gave no sign of life for 6 s"),
    (signal.SIGTERM, "left: its `ratchet join` was stopped")])
def test_a_machine_that_goes_is_told_and_the_next_run_goes_on(place: Place, sign: int, why: str) -> None:
    joined, leader = place.join(), place.lead(epochs := 60 if sign == signal.SIGSTOP else 20)
    until(lambda: len(place.steps()) >= 5)
    joined.send_signal(sign)
    struck = time.monotonic()
    if sign != signal.SIGSTOP:
        joined.wait(20)
    leader.wait(60)
    assert re.match(rf"StageError: stage 'sft': \S+ with rank 1 of 2 {why}; the other ranks were stopped; run again to continue", place.said("lead"))
    assert time.monotonic() - struck < 20
    if sign == signal.SIGSTOP:
        joined.send_signal(signal.SIGCONT)
    until(lambda: gone(place.ranks()), 15)
    before = place.steps()
    assert list((place.work / "progress").glob("checkpoint-*")) and len(before) < 4 * epochs
    place.join()
    assert place.lead(epochs).wait(180) == 0 and place.said("lead") == "made\n"
    assert place.steps() == list(range(1, 4 * epochs + 1)), "a step is missing or stands twice"


@two_machines
@pytest.mark.slow
def test_a_rank_that_dies_elsewhere_is_named_with_its_machine(place: Place) -> None:
    place.join()
    leader = place.lead(epochs=20)
    until(lambda: len(place.steps()) >= 5)
    os.kill(int(re.findall(r"rank 1 of 2: process (\d+)", (place.folder / "log.1.log").read_text())[-1]), signal.SIGKILL)
    leader.wait(30)
    assert re.match(rf"StageError: stage 'sft': rank 1 of 2 on {socket.gethostname()} was killed by SIGKILL; .*log\.1\.log\)$", place.said("lead"))
    assert gone(place.ranks())


@two_machines
@pytest.mark.slow
def test_an_error_elsewhere_is_the_stages_own(place: Place) -> None:
    place.join(first="was(); raise ContractError('this machine alone disagrees')")
    place.lead().wait(60)
    assert place.said("lead") == "ContractError: this machine alone disagrees\n" and gone(place.ranks())
    until(lambda: place.said("join").rstrip().endswith(": failed"), 5)
    assert len(place.said("join").splitlines()) == 3, "what it waits for, what it runs, how that ended"


@two_machines
@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGSTOP])
def test_a_leader_that_dies_leaves_no_rank_and_the_machine_serves_the_next(place: Place, sign: int) -> None:
    joined, leader = place.join(), place.lead(epochs := 60 if sign == signal.SIGSTOP else 20)
    until(lambda: len(place.steps()) >= 5)
    stage = int(re.findall(r"PPid:\s+(\d+)", Path(f"/proc/{place.ranks()[0]}/status").read_text())[0])  # its ranks' fork server
    stage = int(re.findall(r"PPid:\s+(\d+)", Path(f"/proc/{stage}/status").read_text())[0])
    if sign == signal.SIGSTOP:
        os.kill(stage, sign)
        until(lambda: gone(place.ranks()[1:]), 20)
    leader.kill()
    leader.wait()
    if sign == signal.SIGSTOP:
        os.kill(stage, signal.SIGKILL)  # who is stopped does not see that its flow is gone
    until(lambda: gone(place.ranks()), 20)
    until(lambda: "stopped, as" in place.said("join") or "failed" in place.said("join"), 5)
    assert (place.work / CALL).exists() and joined.poll() is None, "what is tested is a call that nobody withdrew"
    assert place.lead(epochs).wait(180) == 0 and place.said("lead") == "made\n"
    assert place.steps() == list(range(1, 4 * epochs + 1)), "a step is missing or stands twice"


@two_machines
@pytest.mark.slow
def test_ranks_that_do_not_find_each_other_are_told(place: Place) -> None:
    place.join(first="time.sleep(60)")
    place.lead(RATCHET_MEET_SECONDS="3").wait(60)
    assert re.match(r"StageError: stage 'sft': \S+ with rank 0 of 2 found not all others within 3 s; GLOO_SOCKET_IFNAME", place.said("lead"))
    assert gone(place.ranks())


@two_machines
@pytest.mark.slow
def test_a_machine_of_other_code_refuses_and_both_say_so(place: Place) -> None:
    other = place.folder / "code"
    for folder in ("components", "tasks", "flows", "infra/package"):
        shutil.copytree(ROOT / folder, other / folder, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    (other / "tasks" / "ranks.py").open("a").write("# changed\n")
    place.join(code=other)
    place.lead(RATCHET_JOIN_SECONDS="15").wait(60)
    why = rf"ratchet is \w+ here and {code()['ratchet']} on \S+; all machines must run the same"
    assert re.match(rf"StageError: stage 'sft' needs 1 more machine and 0 joined within 15 s \(\S+: {why}\); "
                    rf"run `ratchet join --home {place.home}` on each, then the same command again", place.said("lead"))
    assert re.search(rf"stage 'sft' of \S+ goes without this machine: {why}", place.said("join"))


# --- without processes ----------------------------------------------------------------------------------------------------


@pytest.fixture
def led(tmp_path: Path, inputs: dict[str, Artifact], monkeypatch: pytest.MonkeyPatch) -> Iterator[Leader]:
    """A leader of three machines that lead in this process."""
    monkeypatch.setenv("RATCHET_ADDRESS", "127.0.0.1")
    monkeypatch.setattr("ratchet.tasks.machines.PATIENCE", 0.0)
    with lead(request(tmp_path, inputs, learner="deepspeed", ranks=6, machines=3), str(tmp_path / "log"), 6, 3) as leader:
        yield leader


def test_nobody_joins(led: Leader, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(StageError, match=r"stage 'sft' needs 2 more machines and 0 joined within 0 s; run `ratchet join --home .*` on each") as caught:
        led.gather()
    assert not caught.value.retryable and f"waiting for 2 more machines: run `ratchet join --home {tmp_path}` there" in capsys.readouterr().out


def test_a_machine_that_leaves_before_the_start_is_not_counted(led: Leader, tmp_path: Path) -> None:
    ((_, call),) = calls(tmp_path)
    assert call == led.call and call.each == 2
    with Member(call):
        pass
    with Member(call) as second, Member(call) as third:
        led.gather()
        assert (second.node(), third.node()) == (1, 2) and led.names[2] == socket.gethostname()
        with Member(call) as late:
            assert late.node() is None, "three machines are enough"


def test_a_call_of_a_dead_leader_is_not_joined(led: Leader) -> None:
    with pytest.raises(OSError, match="another leader listens there by now"):
        Member(dataclasses.replace(led.call, id="of another"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionRefusedError):
            Member(dataclasses.replace(led.call, port=free.getsockname()[1]))


def test_a_machine_that_does_not_fit_says_why(led: Leader, tmp_path: Path) -> None:
    ((file, call),) = calls(tmp_path)
    assert unfit(file, call, code()) == ""
    assert "all machines must run the same" in unfit(file, call, {**code(), "torch": "1.0"})
    assert unfit(tmp_path / "elsewhere/store/.work/sft-a" / CALL, call, code()) == (
        f"the home is {tmp_path} on {call.leader} and {tmp_path / 'elsewhere'} here; it must have the same path on both")
    moved = {**call.request, "inputs": {"policy": {**call.request["inputs"]["policy"], "path": "/no/such"}}}
    assert unfit(file, dataclasses.replace(call, request=moved), code()) == "/no/such is not seen here; all machines must see the same files"


def test_the_oldest_call_comes_first_and_what_is_no_call_is_passed_over(led: Leader, tmp_path: Path) -> None:
    for name, since in (("b", led.call.since - 1), ("c", led.call.since + 1)):
        (tmp_path / "store/.work" / name).mkdir()
        (tmp_path / "store/.work" / name / CALL).write_text(json.dumps({**dataclasses.asdict(led.call), "since": since}))
    (tmp_path / "store/.work/d").mkdir()
    (tmp_path / "store/.work/d" / CALL).write_text("{")
    assert [file.parent.name for file, _ in calls(tmp_path)] == ["b", "sft-a", "c"]


def test_a_machine_s_address_and_interface(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RATCHET_ADDRESS", "10.1.2.3")
    assert address() == "10.1.2.3" and interface("10.1.2.3") == ""
    monkeypatch.delenv("RATCHET_ADDRESS")
    assert interface("127.0.0.1") == "lo"
    assert socket.inet_aton(address()) and interface(address()), "an address of this machine"


def test_machines_do_not_write_to_one_log() -> None:
    call = Call({}, "/logs/sft.log", 2, 2, "", 0, "", {})
    assert (call.log_of(0), call.log_of(1)) == ("/logs/sft.log", "/logs/sft.1.log")
