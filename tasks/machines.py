"""The machines of one stage: how they find each other, and how each learns that another is gone.

The leader, which is the stage's own process, opens the store where its ranks meet (torch's TCPStore) and says where in `call.json` of the
stage's workspace, in a home that all machines see. All else goes through that store, as a shared disk shows a file late and a closed
connection shows at once:

    open                                the leader's: it is this call's store, and not another's at an old address
    ids, name/ID, beat/ID, word/ID      of who joins: how many came, who it is, that it lives, how its ranks ended
    refusals, refused/N                 why a machine does not take part
    start, stop                         the leader's: {ID: node}, where node 0 is itself; and that all shall end

No clock is compared with another machine's: who counted up `beat` since we last looked was alive.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import secrets
import socket
import struct
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ratchet.components.errors import StageError
from ratchet.components.piece import ROOT
from ratchet.components.store import Workspace, write_atomic
from ratchet.tasks.provenance import packages

CALL = "call.json"
BEAT = 1.0  # seconds between two signs of life
LOST = float(os.environ.get("RATCHET_LOST_SECONDS", "20"))  # without a sign of life, and a machine counts as lost
PATIENCE = float(os.environ.get("RATCHET_JOIN_SECONDS", "1800"))  # to wait for machines to join


@dataclass(frozen=True)
class Call:
    """What a leader asks other machines for."""

    request: Mapping[str, Any]
    log: str
    ranks: int
    machines: int
    host: str
    port: int
    leader: str
    code: Mapping[str, str]
    since: float = field(default_factory=time.time)
    id: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def each(self) -> int:
        return self.ranks // self.machines

    def log_of(self, node: int) -> str:
        """Machines do not append to one file: a shared disk would mix their lines."""
        return str(Path(self.log).with_suffix(f".{node}.log")) if node else self.log


class Ended(Exception):
    """The ranks of this machine shall end, and why."""


@dataclass
class Word:
    """How a machine's ranks ended: the exit codes of those that failed, what they wrote down, or why it left."""

    codes: dict[int, int] = field(default_factory=dict)
    notes: dict[int, dict[str, str]] = field(default_factory=dict)
    left: str = ""

    @classmethod
    def read(cls, text: bytes) -> Word:
        told = json.loads(text)
        codes, notes = ({int(rank): value for rank, value in told[name].items()} for name in ("codes", "notes"))
        return cls(codes, notes, told["left"])


class Leader:
    """The stage's own process: machine 0."""

    def __init__(self, request: Mapping[str, Any], log: str, ranks: int, machines: int) -> None:
        from torch.distributed import PrefixStore, TCPStore

        self.server = TCPStore("localhost", 0, is_master=True, wait_for_workers=False)
        host, own = (address(), code()) if machines > 1 else ("localhost", {})
        self.call = Call(request, log, ranks, machines, host, self.server.port, socket.gethostname(), own)
        self.store = PrefixStore(self.call.id, self.server)
        self.store.set("open", "1")
        self.names = {0: self.call.leader}  # by node
        self.ids: dict[int, int] = {}  # by node
        self.words: dict[int, Word] = {}  # by node
        self.beats: dict[int, tuple[int, float]] = {}  # by id: the count, and when it last rose

    def gather(self) -> None:
        """Wait until all machines are there, and start them. `StageError` when they do not come."""
        work, begun, told = Workspace(Path(self.call.request["work"])), time.monotonic(), None
        others = self.call.machines - 1
        while len(living := self._living()) < others:
            refused = [self.store.get(f"refused/{n + 1}").decode() for n in range(self.store.add("refusals", 0))]
            if (len(living), refused) != told:
                told = len(living), refused
                missing = others - len(living)
                print("\n".join([f"waiting for {missing} more machine{'s' * (missing > 1)}: run `{_command(work.root)}` there", *refused]), flush=True)
                line = {"step": 1 + len(living), "of": self.call.machines, "unit": "machines", "time": time.time(), "metrics": {}}
                write_atomic(work.steps, json.dumps(line))
            if time.monotonic() - begun > PATIENCE:
                why = f" ({'; '.join(refused)})" if refused else ""
                raise StageError(f"stage {self.call.request['does']!r} needs {others} more machine{'s' * (others > 1)} and {len(living)} joined "
                                 f"within {PATIENCE:.0f} s{why}; run `{_command(work.root)}` on each, then the same command again")
            time.sleep(0.2)
        self.ids = {node: id for node, id in enumerate(sorted(living)[:others], 1)}
        self.names |= {node: living[id] for node, id in self.ids.items()}
        self.store.set("start", json.dumps({id: node for node, id in self.ids.items()}))

    def look(self) -> None:
        """Raises `Ended` once ranks of another machine have failed, or it left or is lost."""
        for word in self._heard().values():
            if word.codes or word.left:
                raise Ended(word.left)

    def wait(self) -> None:
        """For the ranks of the others to end well, as `look` does."""
        while len(self._heard()) < len(self.ids):
            self.look()
            time.sleep(0.1)
        self.look()

    def stop(self) -> None:
        """End the ranks of the others, and hear what each has to say of it. Who can say nothing within twice `LOST` is not waited for."""
        self.store.set("stop", "1")
        deadline = time.monotonic() + 2 * LOST
        while len(self._heard()) < len(self.ids) and time.monotonic() < deadline:
            time.sleep(0.1)

    def _living(self) -> dict[int, str]:
        return {id: self.store.get(f"name/{id}").decode() for id in range(1, self.store.add("ids", 0) + 1)
                if self.store.add(f"beat/{id}", 0) and not self.store.check([f"word/{id}"]) and not self._silent(id)}

    def _heard(self) -> dict[int, Word]:
        for node, id in self.ids.items():
            if node in self.words:
                continue
            if self.store.check([f"word/{id}"]):
                self.words[node] = Word.read(self.store.get(f"word/{id}"))
            elif self._silent(id):
                self.words[node] = Word(left=f"was lost: it gave no sign of life for {LOST:.0f} s")
        return self.words

    def _silent(self, id: int) -> bool:
        count, now = self.store.add(f"beat/{id}", 0), time.monotonic()
        before, since = self.beats.get(id, (-1, now))
        if count != before:
            self.beats[id] = count, now
        return count == before and now - since > LOST


@contextlib.contextmanager
def lead(request: Mapping[str, Any], log: str, ranks: int, machines: int) -> Iterator[Leader]:
    """Lead a stage; other machines can join meanwhile."""
    leader, file = Leader(request, log, ranks, machines), Path(request["work"]) / CALL
    if machines > 1:
        write_atomic(file, json.dumps(asdict(leader.call)))
    try:
        yield leader
    finally:
        file.unlink(missing_ok=True)
        leader.store.set("stop", "1")


def address() -> str:
    """Where other machines reach this one: RATCHET_ADDRESS, else what its name stands for, else where it would send from."""
    if told := os.environ.get("RATCHET_ADDRESS"):
        return told
    with contextlib.suppress(OSError):
        if not (found := socket.gethostbyname(socket.gethostname())).startswith("127."):
            return found
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as nothing:
        nothing.connect(("192.0.2.1", 9))  # an address of documents: nothing is sent, a way there is chosen
        return nothing.getsockname()[0]
    return "127.0.0.1"


def interface(host: str) -> str:
    """The network interface of this machine that has the address `host`; empty where none has. gloo asks for its name."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        wanted = socket.gethostbyname(host)
        for _, name in socket.if_nameindex():
            with contextlib.suppress(OSError):
                answer = fcntl.ioctl(any_socket, 0x8915, struct.pack("256s", name.encode()))  # SIOCGIFADDR
                if socket.inet_ntoa(answer[20:24]) == wanted:
                    return name
    return ""


def code() -> dict[str, str]:
    """What ranks of one stage must have in common: our code, and the packages that they compute and speak with."""
    sources = hashlib.sha256()
    for file in sorted([*ROOT.rglob("*.py"), *Path(__file__).parent.glob("*.py")]):
        sources.update(file.read_bytes())
    return {"ratchet": sources.hexdigest()[:12], **{name: packages().get(name, "none") for name in ("torch", "transformers", "peft", "deepspeed")}}


def _command(work: Path) -> str:
    return f"ratchet join --home {work.parents[2]}"
