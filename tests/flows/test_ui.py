"""`ratchet ui` leaves no server behind, however it is stopped."""

import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def heard_on(port: int) -> set[str]:
    """The addresses, as the kernel writes them, on which something listens at `port`."""
    lines = [line.split() for table in ("tcp", "tcp6") for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]]
    return {line[1].split(":")[0] for line in lines if line[3] == "0A" and int(line[1].split(":")[1], 16) == port}


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_both_pages_answer_and_both_servers_end(tmp_path, how):
    child = subprocess.Popen([sys.executable, "-m", "flows.cli", "ui", "--home", str(tmp_path)], cwd=ROOT, text=True, stdout=subprocess.PIPE,
                             preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL))
    assert child.stdout is not None
    try:
        addresses = [child.stdout.readline().split()[1] for _ in range(2)]
        for address in addresses:
            assert urllib.request.urlopen(address, timeout=30).status == 200
            assert heard_on(int(address.rsplit(":", 1)[1].strip("/"))) == {"0100007F"}, "a server listens beyond loopback"
        child.send_signal(how)
        assert child.wait(30) == 0
        for address in addresses:
            with pytest.raises(urllib.error.URLError):
                urllib.request.urlopen(address, timeout=5)
    finally:
        child.kill()
