"""The link to the labelling page on the Prefect page of a suspended run: one artifact, kept up to date."""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

from ratchet.components.errors import redacted
from ratchet.components.labels.queue_files import CLOSED

log = logging.getLogger("ratchet.labels")
KEY = "labels-page"


@contextlib.contextmanager
def link_shown(flow_run: UUID | None, folder: Path, base: str, host: str) -> Iterator[None]:
    """While the page of the queue in `folder` is served at `base`, the page of the flow run shows its
    address, without a token; None: no run is suspended for the queue.
    """
    if flow_run is None:
        yield
        return
    show(flow_run, linked(folder, base, host))
    try:
        yield
    finally:
        closed = (folder / CLOSED).exists() or not folder.exists()
        show(flow_run, "The run has its labels and went on." if closed else unserved(folder))


def linked(folder: Path, base: str, host: str) -> str:
    """Markdown with the address of a served page, and who can open it."""
    from ratchet.tasks.labels.server import is_loopback
    from ratchet.tasks.labels.tokens import uses_tokens

    text = f"[Compare answers]({base}), served at {base}."
    if is_loopback(host):
        text += f" It opens on the machine {socket.gethostname()} only."
    return text + (" Annotators open it by their personal links." if uses_tokens(folder) else "")


def unserved(folder: Path) -> str:
    """Markdown with the command that serves a queue."""
    return f"The page is not served now: `ratchet label {folder}` serves it."


def show(flow_run: UUID, markdown: str) -> None:
    """Create or change the artifact of the flow run; never fails."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
    from prefect.client.schemas.filters import (
        ArtifactFilter,
        ArtifactFilterFlowRunId,
        ArtifactFilterKey,
    )

    of_run = ArtifactFilter(
        key=ArtifactFilterKey(any_=[KEY]), flow_run_id=ArtifactFilterFlowRunId(any_=[flow_run])
    )
    title = "Page on which people compare answers"
    try:
        with get_client(sync_client=True) as client:
            known = client.read_artifacts(artifact_filter=of_run)
            for one in known:
                client.update_artifact(one.id, ArtifactUpdate(data=markdown))
            if not known:
                made = ArtifactCreate(
                    key=KEY, type="markdown", description=title, data=markdown, flow_run_id=flow_run
                )
                client.create_artifact(made)
    except Exception as error:
        log.warning("%s", redacted(f"the Prefect page was not updated: {type(error).__name__}: {error}"))
