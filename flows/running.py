"""Helpers shared by `ratchet run` and `ratchet.run`."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ratchet.components.errors import RatchetError, ServiceError

if TYPE_CHECKING:
    from rich.console import Console

    from ratchet.flows.commands.options import Until
    from ratchet.tasks.pipeline import Pipeline


class Cancelled(RatchetError):
    """The run was cancelled on its Prefect page."""


OUTSIDE = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EROFS,
    errno.EACCES,
    errno.EIO,
    errno.EMFILE,
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.ETIMEDOUT,
)


def environment_error(error: BaseException | None) -> str | None:
    """One sentence for an error of the environment (Prefect server unreachable, disk full, ...) in the
    exception's chain; None for any other.
    """
    while error is not None:
        text = f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
        if type(error).__module__.split(".")[0] in ("httpx", "httpcore") or "Failed to reach API" in text:
            return (
                "the Prefect server at "
                f"{os.environ.get('PREFECT_API_URL', 'an address of this machine')} cannot be reached "
                f"({text})"
            )
        if isinstance(error, OSError) and error.errno in OUTSIDE:
            return f"{error.strerror}{f': {error.filename}' if error.filename else ''}"
        error = error.__cause__ or error.__context__
    return None


def finished(pipeline: Pipeline, until: Until) -> bool:
    """True if all stages are finished and, with `until="register"`, their weights registered as the models of
    the recipe: without an evaluation, a run is the same with another `register`.
    """
    from ratchet.tasks.registry.registration import checkpoints, model_of

    file = pipeline.run.path / "run.json"
    if not file.exists() or any(s.state != "done" for s in pipeline.status()):
        return False
    state = json.loads(file.read_text())
    names = checkpoints(pipeline) if pipeline.recipe.register is not None else []
    wanted = {name: model_of(pipeline, name) for name in names}
    versions = {name: version.rpartition(":")[0] for name, version in (state.get("registered") or {}).items()}
    return until != "register" or (state.get("state") == "finished" and (not wanted or versions == wanted))


def execute(pipeline: Pipeline, console: Console, warnings: Sequence[str], **options: Any) -> None:
    """Run the flow of `pipeline` with the servers it needs, and print `warnings`, its events and a table of
    its stages. `options`: those of `post_training`. Raises `Cancelled`, the errors of the stages, and
    `ServiceError` if the registration is postponed.
    """
    from ratchet.flows.display import Display
    from ratchet.flows.startup import servers, set_environment_defaults

    for warning in warnings:
        console.print(f"WARNING: {warning}", markup=False)
    set_environment_defaults(pipeline.store.home)
    with servers(fork_server=pipeline.profile.launch == "child"), Display(console) as display:
        from prefect.exceptions import Abort

        from ratchet.flows.post_training import post_training

        try:
            done: Any = post_training(
                pipeline.given, home=str(pipeline.store.home), display=display, **options
            )
        except Abort:
            raise Cancelled(
                f"run {pipeline.run.name} was cancelled on its Prefect page; finished work is kept, the same "
                "call resumes"
            ) from None
    console.print(display.table())
    if postponed := done.get("registered", {}).get("postponed"):
        raise ServiceError(f"all stages are finished, but nothing is registered yet: {postponed}")
