"""The link to the labelling page on the Prefect page of a run that waits for people: one artifact, kept up to
date.
"""

from __future__ import annotations

import contextlib
import json
import logging
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from ratchet.components.errors import redacted
from ratchet.components.labels.queue_files import CLOSED
from ratchet.components.storage.store import write_atomic

log = logging.getLogger("ratchet.labels")
KEY = "labels-page"
FILE = "run_page.json"
"""File of a queue: the Prefect server and the flow run that waits for its labels."""


@dataclass(frozen=True)
class RunPage:
    """Page of a flow run at the Prefect server with the address `api`."""

    api: str
    flow_run: UUID

    def show(self, markdown: str) -> None:
        """Create or change the artifact of the flow run; never fails."""
        from prefect.client.orchestration import get_client
        from prefect.client.schemas.actions import ArtifactCreate, ArtifactUpdate
        from prefect.client.schemas.filters import ArtifactFilter
        from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

        title = "Page on which people compare answers"
        of_run = {"key": {"any_": [KEY]}, "flow_run_id": {"any_": [self.flow_run]}}
        new = {"key": KEY, "type": "markdown", "description": title, "flow_run_id": self.flow_run}
        try:
            with (
                temporary_settings({PREFECT_API_URL: self.api, PREFECT_CLIENT_MAX_RETRIES: 0}),
                get_client(sync_client=True) as client,
            ):
                known = client.read_artifacts(artifact_filter=ArtifactFilter.model_validate(of_run))
                for one in known:
                    client.update_artifact(one.id, ArtifactUpdate(data=markdown))
                if not known:
                    client.create_artifact(ArtifactCreate(**new, data=markdown))
        except Exception as error:
            log.warning("%s", redacted(f"the Prefect page was not updated: {type(error).__name__}: {error}"))


def page_of_this_run(folder: Path) -> RunPage | None:
    """The page of the current flow run, which the queue in `folder` remembers; None without a flow run."""
    from prefect.runtime import flow_run
    from prefect.settings import PREFECT_API_URL

    api = PREFECT_API_URL.value()
    if flow_run.id is None or api is None:
        return None
    page = RunPage(api, UUID(flow_run.root_flow_run_id or flow_run.id))
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(folder / FILE, json.dumps({"api": page.api, "flow_run": str(page.flow_run)}) + "\n")
    return page


def page_of(folder: Path) -> RunPage | None:
    """The page of the run that asked for a queue's labels, at PREFECT_API_URL if set; None if none asked."""
    if not (folder / FILE).exists():
        return None
    from prefect.settings import PREFECT_API_URL

    found = json.loads((folder / FILE).read_text())
    return RunPage(PREFECT_API_URL.value() or found["api"], UUID(found["flow_run"]))


@contextlib.contextmanager
def link_shown(folder: Path, base: str, host: str, *, team: bool = False) -> Iterator[None]:
    """While the page of the queue in `folder` is served at `base`, the page of the run that asked shows its
    address, without a token. `team`: accounts of the team server sign in.
    """
    page = page_of(folder)
    if page is None:
        yield
        return
    page.show(linked(folder, base, host, team=team))
    try:
        yield
    finally:
        closed = (folder / CLOSED).exists() or not folder.exists()
        page.show("The run has its labels and went on." if closed else unserved(folder))


def linked(folder: Path, base: str, host: str, *, team: bool = False) -> str:
    """Markdown with the address of a served page, and who can open it."""
    from ratchet.tasks.labels.server import is_loopback
    from ratchet.tasks.labels.tokens import uses_tokens

    text = f"[Compare answers]({base}), served at {base}."
    if is_loopback(host):
        text += f" It opens on the machine {socket.gethostname()} only."
    if team:
        text += " Annotators sign in with their account of the team server."
    elif uses_tokens(folder):
        text += " Annotators open it by their personal links."
    return text


def unserved(folder: Path) -> str:
    """Markdown with the command that serves a queue."""
    return f"The page is not served now: `ratchet label {folder}` serves it."
