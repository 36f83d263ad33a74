"""Locks between processes: runs, registry, GPUs; a killed holder releases its lock."""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ratchet.components.errors import BusyError, RecipeError, StageError, StoreError
from ratchet.tasks.machine import system
from ratchet.tasks.machine.system import visible_gpus
from ratchet.tasks.pipeline import Pipeline
from ratchet.tasks.process import locks
from ratchet.tasks.process.locks import REGISTRY, file_lock, gpu_slots, lock_gpus, registry_lock

ROOT = Path(__file__).resolve().parents[3]
HOLD = """
import sys, time
from pathlib import Path
from ratchet.tasks.process.locks import file_lock
with file_lock(Path(sys.argv[1]), "run toy"):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds `tmp_path/lock`."""
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "lock")], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None and child.stdout.readline() == "held\n"
    yield child
    child.kill()
    child.wait()


def test_second_process_fails_and_names_the_holder(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    with (
        pytest.raises(BusyError, match=rf"toy .*{holder.pid} .*20"),
        file_lock(tmp_path / "lock", "run toy", "refuse"),
    ):
        pass


def test_second_process_waits_until_the_first_is_killed(
    holder: subprocess.Popen[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    killed_at: list[float] = []

    def kill() -> None:
        killed_at.append(time.monotonic())
        os.kill(holder.pid, signal.SIGKILL)

    killer = threading.Timer(0.5, kill)
    killer.start()
    with file_lock(tmp_path / "lock", "run toy"):
        assert killed_at and time.monotonic() - killed_at[0] < 5, (
            "it did not wait, or a dead holder kept the lock"
        )
        assert f"locked by process {holder.pid}" in caplog.text and "waiting" in caplog.text
        assert f'"pid": {os.getpid()}' in (tmp_path / "lock").read_text()
    killer.join()


def test_a_stage_process_does_not_inherit_the_lock(tmp_path: Path) -> None:
    with file_lock(tmp_path / "lock", "run toy"):
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        with file_lock(tmp_path / "lock", "run toy", "refuse"):  # raises BusyError where the child kept it
            assert child.poll() is None, "the child ended too early to test anything"
    finally:
        child.kill()
        child.wait()


@pytest.mark.parametrize(
    ("address", "refused", "requested"),
    [(None, False, []), ("http://prefect/api", True, [REGISTRY]), ("http://prefect/api", False, [REGISTRY])],
)
def test_registry_lock_uses_the_prefect_server_if_reachable(
    address: str | None,
    refused: bool,
    requested: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Without a server, or with one that has no such limit, the file is all, which the log says once."""
    from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError

    held_now, names = [], []

    @contextlib.contextmanager
    def concurrency(name: str, occupy: int, strict: bool, **_: Any) -> Iterator[None]:
        names.append(name)
        if refused:
            raise ConcurrencySlotAcquisitionError("must be created before")
        held_now.append(name)
        yield
        held_now.remove(name)

    monkeypatch.setattr("prefect.concurrency.sync.concurrency", concurrency)
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    if address:
        monkeypatch.setenv("PREFECT_API_URL", address)
    with caplog.at_level("DEBUG", "ratchet.locks"), registry_lock(tmp_path):
        assert names == requested and held_now == ([] if refused else requested)
        with pytest.raises(BusyError), file_lock(tmp_path / "registry.lock", "the model registry", "refuse"):
            pass
    assert not held_now and caplog.text.count("is locked in") == (1 if refused or not address else 0)


class Limit:
    """Fake Prefect concurrency limit with two slots; waiting longer than five seconds counts as a
    deadlock.
    """

    def __init__(self) -> None:
        self.free, self.given_back = 2, threading.Condition()

    @contextlib.contextmanager
    def __call__(self, name: str, occupy: int, **_: Any) -> Iterator[None]:
        with self.given_back:
            assert self.given_back.wait_for(lambda: self.free >= occupy, 5), (
                f"{occupy} slots of {name}, {self.free} free: a deadlock"
            )
            self.free -= occupy
        try:
            yield
        finally:
            with self.given_back:
                self.free += occupy
                self.given_back.notify_all()


@pytest.fixture
def lead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """lead("home", gpus=2) -> [{stage: slots in use while it runs}] of concurrent runs whose rollouts run
    remotely on one GPU.
    """
    flow, limit, meet, used = (
        importlib.import_module("ratchet.flows.post_training"),
        Limit(),
        threading.Barrier(2),
        dict[str, dict[str, int]](),
    )
    seen = dict[str, tuple[str, ...]]()

    def make(pipeline: Any, name: str) -> Any:
        there = pipeline.stages[name].does in pipeline.remote
        if there and len(used) == 2:
            meet.wait(60)  # both leaders have come as far
        with gpu_slots(1 if there else 0):
            used[pipeline.store.home.name][name] = 2 - limit.free
            seen[name] = pipeline.devices
        return SimpleNamespace(path=tmp_path)

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")  # a machine without GPUs
    monkeypatch.setattr(locks, "GPU_LOCKS", tmp_path / "gpus")
    monkeypatch.setattr("prefect.concurrency.sync.concurrency", limit)
    monkeypatch.setattr(flow, "watched", lambda *_: contextlib.nullcontext())
    monkeypatch.setattr(flow, "check_data_drift", lambda _: None)
    monkeypatch.setattr(flow, "online_round", flow.online_round.fn)
    monkeypatch.setattr(flow, "make", make)

    def run(*homes: str, gpus: int) -> list[dict[str, int]]:
        used.update({home: {} for home in homes})
        options = {
            "profile": "test",
            "until": "train",
            "gpus": gpus,
            "artifacts": str(tmp_path),
            "remote_stages": {"rollout": "one_stage/x"},
        }
        with ThreadPoolExecutor() as pool:
            for done in [
                pool.submit(flow.post_training.fn, "online_dpo", home=str(tmp_path / home), **options)
                for home in homes
            ]:
                done.result()
        return [used[home] for home in homes]

    run.seen = seen  # type: ignore[attr-defined]
    return run


def test_slots_are_held_only_for_local_stages(lead: Callable[..., Any]) -> None:
    (used,) = lead("home", gpus=2)
    assert used["rollout_1"] == used["rollout_2"] == 1, (
        "the leader kept its own while another worker wanted one"
    )
    assert (
        used["reward"] == used["annotate_1"] == used["optimise_2"] == 2
        and used["raw"] == used["curated"] == 0
    )


def test_two_runs_with_remote_stages_do_not_deadlock(lead: Callable[..., Any]) -> None:
    one, two = lead("one", "two", gpus=1)
    assert one.keys() == two.keys() and min(one["optimise_2"], two["optimise_2"]) > 0


def test_stage_runs_on_the_gpus_locked_for_it(
    lead: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    lead("home", gpus=1)
    assert (
        lead.seen["reward"] == lead.seen["optimise_2"] == ("4",)
        and lead.seen["raw"] == lead.seen["curated"] == ()
    )
    assert lead.seen["rollout_1"] == (), "made elsewhere: the leader sees no GPU for it"


def test_stage_process_sees_only_its_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline, options = Pipeline.open("sft", home=tmp_path, profile="test"), dict[str, Any]()

    def launch(*_: Any, **given: Any) -> None:
        options.update(given)
        raise StageError("as far as this goes")

    monkeypatch.setattr("ratchet.tasks.pipeline.launch", launch)
    pipeline.devices = ("GPU-1",)
    with pytest.raises(StageError, match="as far"):
        pipeline.make("model_policy")
    assert options["devices"] == ("GPU-1",)


def test_remote_stage_locks_gpus_on_its_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ratchet.components.recipes.recipe import dump

    one_stage, seen = importlib.import_module("ratchet.flows.one_stage"), []
    led = Pipeline.open("sft", home=tmp_path / "home", profile="test")

    def make(pipeline: Pipeline, _: str) -> None:
        seen.append(pipeline.devices)
        raise StageError("as far as this goes")

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    monkeypatch.setattr(locks, "GPU_LOCKS", tmp_path / "gpus")
    monkeypatch.setattr("prefect.concurrency.sync.concurrency", Limit())
    monkeypatch.setattr(one_stage, "make", make)
    with pytest.raises(StageError, match="as far"):
        one_stage.one_stage.fn(
            dump(led.recipe, led.profile),
            stage="model_policy",
            key=led.stages["model_policy"].key,
            run="r",
            artifacts=str(tmp_path / "between"),
            home=str(tmp_path / "far"),
            gpus=2,
        )
    assert seen == [("4", "5")]


# --- the GPUs of one machine
# -------------------------------------------------------------------------------------------

TAKE = """
import sys
from pathlib import Path
from ratchet.tasks.machine import system
from ratchet.tasks.process import locks
locks.GPU_LOCKS, locks.LOOK_SECONDS = Path(sys.argv[1]), 0.05
with locks.lock_gpus(system.visible_gpus(), int(sys.argv[2])) as given:
    print(",".join(given), flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def take(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """take("0,1", 1): a process that takes one of the two GPUs, and says which, until its input is closed."""
    started = []

    def start(visible: str, count: int) -> subprocess.Popen[str]:
        env = {**os.environ, "PYTHONPATH": str(ROOT / "infra" / "package"), "CUDA_VISIBLE_DEVICES": visible}
        started.append(
            subprocess.Popen(
                [sys.executable, "-c", TAKE, str(tmp_path / "gpus"), str(count)],
                cwd=ROOT,
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return started[-1]

    yield start
    for child in started:
        with child:
            child.kill()


def next_line(stream: Any) -> str:
    """The next line of output, within a minute."""
    assert select.select([stream], [], [], 60)[0], "it waits for ever"
    return stream.readline().strip()


@pytest.mark.parametrize("end", ["returns", "is killed"])
def test_two_processes_get_two_gpus_and_a_third_waits_until_one_ends(
    end: str, take: Callable[..., subprocess.Popen[str]]
) -> None:
    first, second = take("0,1", 1), take("0,1", 1)
    gpus = [next_line(first.stdout), next_line(second.stdout)]
    assert sorted(gpus) == ["0", "1"]
    third = take("0,1", 1)
    assert "waiting for 1 of the GPUs 0, 1: 0 is locked by process" in next_line(third.stderr)
    assert not select.select([third.stdout], [], [], 0.5)[0], "it did not wait"
    if end == "is killed":
        second.kill()
    else:
        assert second.stdin is not None
        second.stdin.close()
    assert next_line(third.stdout) == gpus[1] and first.poll() is None


def test_waiting_for_several_gpus_holds_none(take: Callable[..., subprocess.Popen[str]]) -> None:
    """Otherwise two runs that need both GPUs would each hold one forever."""
    first = take("0,1", 1)
    held_by_first = next_line(first.stdout)
    both = [take("0,1", 2), take("1,0", 2)]
    assert all("waiting for 2" in next_line(child.stderr) for child in both)
    other = take("0,1", 1)
    assert {held_by_first, next_line(other.stdout)} == {"0", "1"}, "who waits kept a GPU"
    first.kill()
    other.kill()
    ready = select.select([child.stdout for child in both], [], [], 60)[0]
    assert len(ready) == 1
    (one,) = (child for child in both if child.stdout in ready)
    assert (
        sorted(next_line(one.stdout).split(",")) == ["0", "1"]
        and not select.select([c.stdout for c in both if c is not one], [], [], 0.5)[0]
    )
    one.kill()
    assert sorted(next_line(next(child for child in both if child is not one).stdout).split(",")) == [
        "0",
        "1",
    ]


def test_concurrent_gpu_locks_are_exclusive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "GPU_LOCKS", tmp_path / "gpus")
    monkeypatch.setattr(locks, "LOOK_SECONDS", 0.001)
    here, now, most = {name: name for name in "0123"}, list[str](), list[int]()

    def work(count: int) -> None:
        for _ in range(20):
            with lock_gpus(here, count) as given:
                now.extend(given)
                assert len(given) == count and len(now) == len(set(now)), "a GPU was given to two"
                most.append(len(now))
                time.sleep(0.001)
                for name in given:
                    now.remove(name)

    with ThreadPoolExecutor(6) as pool:
        for done in [pool.submit(work, count) for count in (1, 1, 2, 2, 3, 4)]:
            done.result(120)
    assert max(most) == 4


def test_gpu_locks_work_for_every_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locks, "GPU_LOCKS", tmp_path / "gpus")
    umask = os.umask(0o077)
    try:
        with lock_gpus({"GPU-a": "0", "MIG-GPU-b/1/0": "MIG-GPU-b/1/0"}, 2) as given:
            assert given == ("0", "MIG-GPU-b/1/0")
    finally:
        os.umask(umask)
    assert (tmp_path / "gpus").stat().st_mode & 0o7777 == 0o1777
    assert {file.name: file.stat().st_mode & 0o777 for file in (tmp_path / "gpus").iterdir()} == {
        "GPU-a": 0o666,
        "MIG-GPU-b_1_0": 0o666,
    }


def test_full_disk_does_not_break_gpu_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the holder's name cannot be written."""

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(locks, "GPU_LOCKS", tmp_path / "gpus")
    monkeypatch.setattr(os, "pwrite", full)
    with lock_gpus({"0": "0"}, 1) as given:
        assert given == ("0",)


def test_unusable_lock_directory_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gpus").write_text("")
    monkeypatch.setattr(locks, "GPU_LOCKS", tmp_path / "gpus")
    with pytest.raises(StoreError, match=r"GPU 0 .*gpus"), lock_gpus({"0": "0"}, 1):
        pass
    (tmp_path / "gpus").unlink()
    (tmp_path / "gpus").mkdir()
    (tmp_path / "gpus" / "0").symlink_to(tmp_path / "precious")
    (tmp_path / "precious").write_text("kept")
    with pytest.raises(StoreError, match="GPU 0"), lock_gpus({"0": "0"}, 1):
        pass
    assert (tmp_path / "precious").read_text() == "kept"


def test_too_many_gpus_is_an_error_and_zero_locks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    requested = []

    @contextlib.contextmanager
    def concurrency(name: str, occupy: int, **_: Any) -> Iterator[None]:
        assert occupy <= len(visible_gpus() or range(9)), "the slots come, the GPUs never"
        requested.append(occupy)
        yield

    monkeypatch.setattr("prefect.concurrency.sync.concurrency", concurrency)
    monkeypatch.setattr(locks, "GPU_LOCKS", tmp_path / "gpus")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    with pytest.raises(RecipeError, match=r"`gpus: 3`.* 2 .*2, 3"), gpu_slots(3):
        pass
    with gpu_slots(0) as given:
        assert given == () and not requested and not (tmp_path / "gpus").exists()
    with gpu_slots(2) as given:
        assert given == ("2", "3") and requested == [2]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with gpu_slots(3) as given:
        assert given == () and requested == [2, 3], "a machine without GPUs counts slots, as before"


def binding(*uuids: str) -> SimpleNamespace:
    """Fake `pynvml` with these GPUs."""
    return SimpleNamespace(
        NVMLError=OSError,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: len(uuids),
        nvmlDeviceGetHandleByIndex=lambda number: number,
        nvmlDeviceGetUUID=lambda handle: uuids[handle],
    )


@pytest.mark.parametrize(
    ("listed", "found"),
    [
        (None, {"GPU-aa": "0", "GPU-ab": "1"}),
        ("1", {"GPU-ab": "1"}),
        ("1, 0", {"GPU-ab": "1", "GPU-aa": "0"}),
        ("", {}),
        ("-1", {}),
        ("0,-1,1", {"GPU-aa": "0"}),
        ("0,0", {"GPU-aa": "0"}),
        ("GPU-ab", {"GPU-ab": "GPU-ab"}),
        ("GPU-a", {"GPU-a": "GPU-a"}),
        ("MIG-x", {"MIG-x": "MIG-x"}),
        ("7", {"7": "7"}),
    ],
)
def test_gpus_are_from_cuda_visible_devices_or_nvml(
    listed: str | None, found: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Index and UUID of a GPU map to one lock; unknown names are used as they are."""
    monkeypatch.setitem(sys.modules, "pynvml", binding("GPU-aa", "GPU-ab"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if listed is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    gpus = visible_gpus()
    assert list(gpus.items()) == list(found.items())


def test_gpu_uuid_prefix_is_resolved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", binding("GPU-8932f937-d72c", "GPU-11111111-0000"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-8932")
    assert visible_gpus() == {"GPU-8932f937-d72c": "GPU-8932"}


def test_gpus_without_nvml_must_be_listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(system, "DRIVER", tmp_path / "nvidiactl")
    assert visible_gpus() == {}
    (tmp_path / "nvidiactl").touch()
    with pytest.raises(RecipeError, match=r"\[scale\].*CUDA_VISIBLE_DEVICES"):
        visible_gpus()
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert visible_gpus() == {"0": "0", "1": "1"}


def test_installed_nvml_has_the_functions_used() -> None:
    pynvml = pytest.importorskip("pynvml")
    assert all(callable(getattr(pynvml, name)) for name in vars(binding()))


@pytest.mark.slow
@pytest.mark.parametrize("if_running", ["wait", "refuse"])
def test_second_run_of_a_recipe_waits_or_is_refused(
    if_running: str, fresh_home: Callable[[str], Path]
) -> None:
    """The command as a user types it, twice at once: one product, and the second waits or says in one
    sentence why not.
    """
    home = fresh_home("two")
    command = [
        sys.executable,
        "-m",
        "ratchet.flows.cli",
        "run",
        "sft",
        "--profile",
        "test",
        "--home",
        str(home),
        "--set",
        "sft.limit=32",
        "--set",
        "evaluate.prompts=4",
        "--until",
        "train",
        "--if-running",
        if_running,
    ]
    env = {k: v for k, v in os.environ.items() if not k.startswith(("PREFECT_API", "MLFLOW_TRACKING"))} | {
        "PYTHONPATH": str(ROOT / "infra" / "package")
    }
    first = subprocess.Popen(
        command, cwd=home, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and not list(home.glob("runs/*/run.json")):
        time.sleep(0.05)
    second = subprocess.run(command, cwd=home, env=env, capture_output=True, text=True)
    next_line, _ = first.communicate()
    assert first.returncode == 0, next_line
    if if_running == "refuse":
        assert (
            second.returncode == 1
            and "error: run sft-" in second.stderr
            and f"process {first.pid}" in second.stderr
        )
    else:
        assert second.returncode == 0 and f"locked by process {first.pid}" in second.stderr, (
            second.stdout + second.stderr
        )
    assert len(list((home / "store").glob("sft-*"))) == 1 and not list((home / "store").glob(".replaced-*"))
