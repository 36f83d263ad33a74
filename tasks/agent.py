"""torchrun's agent on one machine: it starts the ranks, watches them, and ends all when one ends badly. Importing this takes torch."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from torch.distributed import HashStore
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousInfo, RendezvousStoreInfo


def start(entry: Callable[..., Any], args: tuple[Any, ...], each: int, place: Place) -> Any:
    """The `RunResult` of `each` processes that call `entry(*args)`, from a fork server: a process that has seen a GPU must not be forked. Nothing is started again.
    Whatever `place.look` raises ends them and is raised."""
    os.environ["TORCH_ELASTIC_WORKER_IDENTICAL"] = "1"  # a rank's number follows from its machine's: agents need not meet for it
    spec = WorkerSpec(role="rank", local_world_size=each, entrypoint=entry, args=args, rdzv_handler=place, max_restarts=0)
    return _Agent(spec, DefaultLogsSpecs(), start_method="forkserver", shutdown_timeout=3).run()


class _Agent(LocalElasticAgent):
    def _exit_barrier(self) -> None:
        """Agents wait for each other in `ratchet.tasks.machines`, which notices when one is gone."""


class Place(RendezvousHandler):
    """Machine `node` of `machines`, whose ranks meet at a TCPStore on `host` and `port`. `look` is called ten times a second."""

    def __init__(self, node: int, machines: int, host: str, port: int, look: Callable[[], None]) -> None:
        self.info = RendezvousInfo(HashStore(), node, machines, RendezvousStoreInfo(host, port))
        self.look = look

    @property
    def use_agent_store(self) -> bool:
        return True

    def get_backend(self) -> str:
        return "static"

    def next_rendezvous(self) -> RendezvousInfo:
        return self.info

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        self.look()
        return 0

    def get_run_id(self) -> str:
        return "ranks"

    def shutdown(self) -> bool:
        return True
