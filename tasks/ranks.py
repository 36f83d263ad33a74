"""A stage on several processes, of one machine or of several: torchrun's agent, inside the process that the launcher made for the stage.

The agent starts the ranks of its machine, watches them, and ends all when one ends badly; on the other machines `ratchet join` holds one,
and this process leads them (`tasks/machines.py`). Nothing is restarted here: a second run of the stage goes on from its last checkpoint.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ratchet.components import errors
from ratchet.components.errors import RatchetError, RecipeError, StageError, redacted
from ratchet.components.schema import Profile
from ratchet.components.store import write_atomic
from ratchet.tasks.machines import Call, Ended, Word, interface, lead


def ready(profile: Profile) -> None:
    """Refuse to begin what would end at the first stage that learns."""
    if profile.learner == "deepspeed" and importlib.util.find_spec("deepspeed") is None:
        raise RecipeError(f"profile {profile.name}: `learner: deepspeed`, and DeepSpeed is not installed here; "
                          "pip install 'ratchet-rlhf[scale]', or take `learner: torch`")


MET = "met"  # a file of this name: the first rank has found all others
MEET = float(os.environ.get("RATCHET_MEET_SECONDS", "900"))
"""Until the ranks of several machines have to have found each other. gloo would try for as long as a rank may work (`ranks.PATIENCE`)."""


def ranks_of(request: Mapping[str, Any]) -> int:
    """How many processes a stage takes: the profile's `ranks` where something learns, else one."""
    profile = request["options"].get("profile") or {}
    return int(profile.get("ranks", 1)) if "fit" in request["options"] else 1


def execute_on_ranks(request: Mapping[str, Any], log: str) -> dict[str, Any]:
    """The stage's meta, as the first rank tells it. Raises the `RatchetError` of the rank that failed first, or a
    `StageError` that names the rank which died, or the machine."""
    from ratchet.tasks.launch import PRELOAD

    count, machines, told = ranks_of(request), int(request["options"]["profile"].get("machines", 1)), Path(request["work"]) / "ranks"
    if short := short_of_devices(count // machines):
        raise RecipeError(f"stage {request['does']!r}: the profile says `ranks: {count}`{f' on `machines: {machines}`' if machines > 1 else ''}, {short}")
    shutil.rmtree(told, ignore_errors=True)
    told.mkdir(parents=True)
    multiprocessing.get_context("forkserver").set_forkserver_preload(PRELOAD)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # who is ended while it waits calls nobody any longer
    try:
        with lead(request, log, count, machines) as leader:
            leader.gather()
            begun = time.monotonic()

            def look() -> None:
                leader.look()
                if machines > 1 and time.monotonic() - begun > MEET and not (told / MET).exists():
                    raise Apart(f"found not all others within {MEET:.0f} s; GLOO_SOCKET_IFNAME names the network interface that ranks talk through")

            through = interface(leader.call.host) if machines > 1 else ""
            own, meta, _ = run_ranks(leader.call, 0, "localhost", told, look, through)
            with contextlib.suppress(Ended):
                if meta is not None:
                    leader.wait()
                    return meta
            leader.stop()
            raise why(leader.call, leader.names, {**leader.words, 0: own})
    finally:
        shutil.rmtree(told, ignore_errors=True)


class Apart(Ended):
    """The ranks of several machines do not find each other."""


def run_ranks(call: Call, node: int, host: str, told: Path, look: Callable[[], None], through: str) -> tuple[Word, dict[str, Any] | None, str]:
    """How the ranks of machine `node` ended, the stage's meta if the first is among them and all went well, and why `look` ended them."""
    from ratchet.tasks.agent import Place, start

    meta, stopped, codes, left = None, "", {}, ""
    try:
        result = start(_rank, (dict(call.request), str(told), call.log_of(node), os.getpid(), through), call.each,
                       Place(node, call.machines, host, call.port, look))
        codes, meta = {rank: failure.exitcode for rank, failure in result.failures.items()}, result.return_values.get(0)
    except Ended as error:
        stopped, left = str(error), str(error) if isinstance(error, Apart) else ""
    return Word(codes, {int(file.stem): json.loads(file.read_text()) for file in told.glob("*.json")}, left), meta, stopped


def short_of_devices(each: int) -> str:
    """What a machine says that has fewer GPUs than ranks to start; nothing when it has enough, or has none."""
    import torch

    devices = torch.cuda.device_count() if torch.cuda.is_available() else each
    return f"one a GPU, and {socket.gethostname()} has {devices} for {each}; take fewer ranks or more machines" if each > devices else ""


def numbers(call: Call, node: int) -> str:
    first = node * call.each
    return f"ranks {first} to {first + call.each - 1} of {call.ranks}" if call.each > 1 else f"rank {first} of {call.ranks}"


def _rank(request: dict[str, Any], told: str, log: str, agent: int, through: str = "") -> dict[str, Any] | None:
    """One rank, in a process of its own. What goes wrong is written down for the agent, which otherwise sees an exit code."""
    from ratchet.tasks.launch import die_with, write_to

    die_with(agent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    write_to(log)
    print(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']}: process {os.getpid()}", flush=True)
    if through:  # of the interfaces, and not what the machine's name happens to stand for on itself
        os.environ.setdefault("GLOO_SOCKET_IFNAME", through)
    from ratchet.components import ranks
    from ratchet.components.run import execute

    try:
        ranks.join()
        (Path(told) / MET).touch()
        meta = execute(request)
        return meta if ranks.first() else None
    except BaseException as error:
        print(redacted(traceback.format_exc()), flush=True)
        number = int(os.environ["RANK"])
        write_atomic(Path(told) / f"{number}.json", json.dumps({"kind": type(error).__name__, "text": redacted(str(error))}))
        if not isinstance(error, RatchetError):
            time.sleep(1.0)  # a broken connection is an echo: the agent shall first see who died
        sys.exit(1)  # torch's agent would print what is raised here, and a secret in it


def why(call: Call, names: Mapping[int, str], words: Mapping[int, Word]) -> RatchetError:
    """The one sentence about a stage whose ranks ended badly, from what the machines `names` say: a death explains the errors of
    the others, one of our own errors explains the broken connections of the rest, and so does a machine that went away."""
    does, codes, notes = call.request["does"], dict[int, int](), dict[int, dict[str, str]]()
    for word in words.values():
        codes, notes = codes | word.codes, notes | word.notes

    def who(rank: int) -> str:
        return f"stage {does!r}: rank {rank} of {call.ranks}{f' on {names[rank // call.each]}' if call.machines > 1 else ''}"

    def end(rank: int) -> str:
        return f"the other ranks were stopped; run again to continue from the last checkpoint (log: {call.log_of(rank // call.each)})"

    for rank, exitcode in sorted(codes.items()):
        if exitcode < 0 and exitcode != -signal.SIGTERM:
            name = signal.Signals(-exitcode).name
            memory = "; the machine probably ran out of memory" if name == "SIGKILL" else ""
            return StageError(f"{who(rank)} was killed by {name}{memory}; {end(rank)}", died=True)
    for rank, note in sorted(notes.items()):
        kind = getattr(errors, note["kind"], None)
        if isinstance(kind, type) and issubclass(kind, RatchetError):
            return kind(note["text"])
        if note["kind"] == "MemoryError":
            return StageError(f"{who(rank)} ran out of memory; use a smaller profile (tokens_per_batch), "
                              f"more ranks or a higher zero_stage; {end(rank)}", died=True)
    for node, word in sorted(words.items()):
        if word.left:
            return StageError(f"stage {does!r}: {names[node]} with {numbers(call, node)} {word.left}; {end(0)}", died=True)
    for rank, note in sorted(notes.items()):
        return StageError(f"{who(rank)} failed: {note['kind']}: {note['text']}; {end(rank)}")
    told = ", ".join(f"rank {rank}: exit code {code}" for rank, code in sorted(codes.items()))
    return StageError(f"stage {does!r} ended without a result ({told}); {end(min(codes, default=0))}", died=True)
