"""A machine that others may count upon: it waits for stages of a home that ask for machines, and runs its share of their ranks.

`ratchet join` is this. It holds nothing between two stages, outlives the runs it helps, and ends its ranks when it ends.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import NoReturn

from ratchet.tasks.machines import BEAT, CALL, LOST, Call, Ended, Word, code, interface
from ratchet.tasks.ranks import numbers, run_ranks, short_of_devices

LOOK, AGAIN = 1.0, 10.0
"""Seconds between two looks for stages that ask for machines, and until one is looked at again that this machine does not fit."""


def lend(home: Path, say: Callable[[str], None]) -> NoReturn:
    """Run this machine's share of every stage in `home` that asks for machines, until interrupted. What there is to know goes to `say`."""
    from ratchet.tasks.launch import prepare

    own, later, told = code(), dict[str, float](), set[tuple[str, str]]()
    logging.disable(logging.ERROR)  # the agent has many words for a rank that failed
    os.environ["TORCHELASTIC_SIGNALS_TO_HANDLE"] = "SIGTERM"
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    while True:
        for file, call in calls(home.resolve()):
            if time.monotonic() < later.get(call.id, 0.0):
                continue
            prepare()
            try:
                member = _admitted(file, call, own, told)
            except Unfit as wrong:
                if (call.id, str(wrong)) not in told:
                    say(f"stage {call.request['does']!r} of {call.leader} goes without this machine: {wrong}")
                told.add((call.id, str(wrong)))
                later[call.id] = time.monotonic() + AGAIN
                continue
            later[call.id] = float("inf")
            _take_part(member, say)
            break
        time.sleep(LOOK)


class Unfit(Exception):
    """Why this machine takes no part."""


def _admitted(file: Path, call: Call, own: Mapping[str, str], told: set[tuple[str, str]]) -> Member:
    """This machine as a member of the call. Raises `Unfit`, which the leader is told too, unless it stands in `told`."""
    try:
        member = Member(call)
        if wrong := unfit(file, call, own) or short_of_devices(call.each):
            if (call.id, wrong) not in told:
                member.refuse(wrong)
            raise Unfit(wrong)
    except OSError as error:
        raise Unfit(f"nobody answers at {call.host}:{call.port} ({error}); if that stage still waits, set RATCHET_ADDRESS where it runs "
                    "to an address that this machine reaches") from error
    return member


def _take_part(member: Member, say: Callable[[str], None]) -> None:
    """Wait for the start, run the ranks that are this machine's, tell how they ended."""
    from torch.distributed.elastic.multiprocessing import SignalException

    call = member.call
    try:
        with member, tempfile.TemporaryDirectory(prefix="ratchet-ranks-") as told:
            node = member.node()
            if node is None:
                return
            say(f"stage {call.request['does']!r} of {call.leader}: {numbers(call, node)} here (log: {call.log_of(node)})")
            word, _, stopped = run_ranks(call, node, call.host, Path(told), member.look, interface(member.address))
            signal.signal(signal.SIGTERM, signal.default_int_handler)  # the agent had its own
            member.say(word)
    except Ended:  # before it began: another call may come
        return
    except SignalException:
        raise KeyboardInterrupt from None
    done = f"stopped, as {stopped}" if stopped else "failed" if word.codes else "done"
    say(f"stage {call.request['does']!r} of {call.leader}: {done}")


def calls(home: Path) -> list[tuple[Path, Call]]:
    """What is asked for in a home, the oldest first: so of two stages that ask one gets all it needs, and not each a part."""
    found = []
    for file in (home / "store" / ".work").glob(f"*/{CALL}"):
        with contextlib.suppress(OSError, ValueError, TypeError):  # just gone, or of another version
            found.append((file, Call(**json.loads(file.read_text()))))
    return sorted(found, key=lambda pair: pair[1].since)


def unfit(file: Path, call: Call, own: Mapping[str, str]) -> str:
    """Why this machine, of the code `own`, can take no part; empty when it can."""
    work = Path(call.request["work"])
    if work != file.parent:
        return f"the home is {work.parents[2]} on {call.leader} and {file.parents[3]} here; it must have the same path on both"
    unseen = [path for path in (Path(call.log).parent, *(Path(a["path"]) for a in call.request["inputs"].values())) if not path.exists()]
    if unseen:
        return f"{unseen[0]} is not seen here; all machines must see the same files"
    if other := next((name for name in own if own[name] != call.code.get(name)), None):
        return f"{other} is {own[other]} here and {call.code.get(other)} on {call.leader}; all machines must run the same"
    return ""


class Member:
    """A machine that joins a call. Raises `OSError` when nobody answers who knows of it."""

    def __init__(self, call: Call) -> None:
        from torch.distributed import PrefixStore, TCPStore

        with socket.create_connection((call.host, call.port), timeout=5) as connection:
            self.address = connection.getsockname()[0]
        self.call, self.gone, self.said, self.over = call, "", False, threading.Event()
        self.nodes: dict[str, int] = {}
        try:
            self.store = PrefixStore(call.id, TCPStore(call.host, call.port, timeout=timedelta(seconds=10)))
            known = self.store.check(["open"])
        except RuntimeError as error:  # torch's DistError
            raise ConnectionError(str(error).splitlines()[0]) from error
        if not known:
            raise ConnectionRefusedError("another leader listens there by now")
        self.heard = time.monotonic()

    def refuse(self, why: str) -> None:
        self.store.set(f"refused/{self.store.add('refusals', 1)}", f"{socket.gethostname()}: {why}")

    def __enter__(self) -> Member:
        self.id = self.store.add("ids", 1)
        self.store.set(f"name/{self.id}", socket.gethostname())
        self.store.add(f"beat/{self.id}", 1)
        self.beating = threading.Thread(target=self._beat, daemon=True)
        self.beating.start()
        return self

    def __exit__(self, *_: object) -> None:
        if not self.said:
            self.say(Word(left="left: its `ratchet join` was stopped"))

    def node(self) -> int | None:
        """Wait for the start: which machine this is, None when it is not needed. Raises `Ended`."""
        while not self.nodes:
            self.look()
            time.sleep(0.1)
        return self.nodes.get(str(self.id))

    def look(self) -> None:
        """Raises `Ended` once the leader says stop or is gone."""
        if not self.gone and time.monotonic() - self.heard > LOST:
            self.gone = f"{self.call.leader}, which led, has not answered for {LOST:.0f} s"
        if self.gone:
            raise Ended(self.gone)

    def say(self, word: Word) -> None:
        """The last thing the leader hears of this machine."""
        self.said = True
        self.over.set()
        self.beating.join(2 * BEAT)
        if not self.beating.is_alive():  # else it waits for an answer that does not come
            with contextlib.suppress(RuntimeError):
                self.store.set(f"word/{self.id}", json.dumps(asdict(word)))

    def _beat(self) -> None:
        while not self.over.wait(BEAT):
            try:
                self.store.add(f"beat/{self.id}", 1)
                if not self.nodes and self.store.check(["start"]):
                    self.nodes = json.loads(self.store.get("start"))
                if self.store.check(["stop"]):
                    self.gone = f"{self.call.leader}, which leads, said stop"
            except RuntimeError:  # torch's DistError: the connection is closed
                self.gone = f"{self.call.leader}, which led, is gone"
                return
            self.heard = time.monotonic()
