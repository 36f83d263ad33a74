"""The run's own Prefect server: start, stop, errors, and the cached database template."""

from __future__ import annotations

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from ratchet.components.errors import ServiceError
from ratchet.tasks.process import prefect_server
from ratchet.tasks.process.prefect_server import PrefectServer, kept

ROOT = Path(__file__).parents[3]


def tables(database: Path) -> dict[str, int]:
    """Rows of every table."""
    with contextlib.closing(sqlite3.connect(database)) as open_:
        names = [name for (name,) in open_.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return {name: open_.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for name in names}


def served(folder: Path, work: str = "pass") -> str:
    """What a process says that starts a server in `folder`, does `work` and ends."""
    code = f"""
import fcntl, os, urllib.request
from pathlib import Path
from ratchet.tasks.process.prefect_server import start
server = start(Path({str(folder)!r}))

def turn():
    with Path({str(folder / "database.lock")!r}).open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return "free"
        except BlockingIOError:
            return "held"

print("copied" if server.unkept is None else "migrates", turn())
server.wait(120)
print(turn())
print(urllib.request.urlopen(os.environ["PREFECT_API_URL"] + "/health").read().decode(), server.process.pid, flush=True)
{work}
"""  # noqa: E501
    folder.mkdir(exist_ok=True)
    env = {**{k: v for k, v in os.environ.items() if k != "PREFECT_API_URL"}, "PREFECT_HOME": str(folder)}
    return subprocess.run(
        [sys.executable, "-c", code], env=env, cwd=ROOT, text=True, capture_output=True, check=True
    ).stdout


@pytest.mark.slow  # over half a minute: four servers
def test_second_home_copies_the_migrated_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    run = "from prefect import flow\nflow(name='work')(lambda: None)()"
    output = served(tmp_path / "one", run).split()
    assert output[:4] == ["migrates", "held", "free", "true"], (
        "a second server waits until the first has made the database: two would end each other"
    )
    assert not Path(f"/proc/{output[4]}").exists(), "it ends with its process"
    assert tables(tmp_path / "one" / "prefect.db")["flow_run"] == 1 and tables(kept())["flow_run"] == 0
    assert served(tmp_path / "two", run).split()[:4] == ["copied", "free", "free", "true"]
    assert tables(tmp_path / "two" / "prefect.db")["flow_run"] == 1 and tables(kept())["flow_run"] == 0
    assert (
        served(tmp_path / "one").split()[0] == "copied"
        and tables(tmp_path / "one" / "prefect.db")["flow_run"] == 1
    ), "what is there stays"


BEATS = """
from pathlib import Path
from ratchet.flows.startup import set_environment_defaults, servers
set_environment_defaults(Path.cwd())
with servers():
    from prefect.settings import get_current_settings
    print(get_current_settings().flows.heartbeat_frequency)
"""


@pytest.mark.parametrize(("address", "seconds"), [(None, "None"), ("http://127.0.0.1:9/api", "180")])
def test_heartbeats_are_sent_only_to_a_shared_prefect_server(
    tmp_path: Path, address: str | None, seconds: str
) -> None:
    """Heartbeats show a shared server which runs are dead. A run's own server does not use them, and
    Prefect's heartbeat thread delays the end of each flow by a second.
    """
    env = {
        **{k: v for k, v in os.environ.items() if not k.startswith("PREFECT_")},
        "PYTHONPATH": str(ROOT / "infra" / "package"),
        **({"PREFECT_API_URL": address} if address else {}),
    }
    done = subprocess.run(
        [sys.executable, "-c", BEATS], env=env, cwd=tmp_path, text=True, capture_output=True, check=True
    )
    assert done.stdout.split() == [seconds]


def test_database_template_is_optional(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert not prefect_server._take(tmp_path / "prefect.db") and not (tmp_path / "prefect.db").exists()
    prefect_server._keep(tmp_path / "prefect.db")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file"]


def test_failed_server_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    ended = subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"])
    with pytest.raises(ServiceError, match="exit code 3"):
        PrefectServer("http://127.0.0.1:9/api", ended).wait(60)
    silent = subprocess.Popen(["sleep", "60"])
    with pytest.raises(ServiceError, match=r"0\.2 s.*PREFECT_SERVER"):
        PrefectServer("http://127.0.0.1:9/api", silent).wait(0.2)
    PrefectServer("", silent).stop()
    assert silent.returncode == -signal.SIGTERM
