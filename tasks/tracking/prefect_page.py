"""The run's page in the Prefect UI: name, progress, a table per stage, the report, summary."""

from __future__ import annotations

import functools
import platform
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ratchet.components.errors import redacted
from ratchet.components.recipes.plan import Stage
from ratchet.components.types import Artifact
from ratchet.tasks.pipeline import Pipeline
from ratchet.tasks.tracking.outcome import markdown, numbers_of, outcome
from ratchet.tasks.tracking.upload import BackgroundUploader

AWAY_SECONDS = 300.0
"""Pause after a failed call: Prefect's client retries for more than a minute per call, and a run makes
dozens.
"""


def unless_away(method: Callable[..., None]) -> Callable[..., None]:
    """Decorator of `PrefectPage` methods: no-op while the server is known to be unreachable."""

    @functools.wraps(method)
    def call(page: PrefectPage, *args: Any, **options: Any) -> None:
        from httpx import TransportError

        if time.monotonic() < page.away_until:
            return
        try:
            method(page, *args, **options)
        except TransportError:
            page.away_until = time.monotonic() + AWAY_SECONDS
            raise

    return call


class PrefectPage:
    """Watcher that creates Prefect artifacts: progress of long stages, a table per stage, a link to the
    report.
    """

    def __init__(self, tracking: BackgroundUploader | None = None) -> None:
        self.tracking = tracking
        self.progress: Any = None
        self.last = 0.0
        self.away_until = 0.0

    @unless_away
    def begin(self, run: str) -> None:
        """Rename the flow run to the run's name, which is known once the recipe is loaded."""
        from prefect.client.orchestration import get_client
        from prefect.runtime import flow_run

        if number := flow_run.id:
            with get_client(sync_client=True) as client:
                client.update_flow_run(number, name=run)

    @unless_away
    def summary(self, pipeline: Pipeline) -> None:
        from prefect.artifacts import create_markdown_artifact

        create_markdown_artifact(
            markdown=markdown(outcome(pipeline.run.path), pipeline.recipe.about),
            key="run",
            description=f"{pipeline.run.name}: stages and verdict",
        )

    def started(self, stage: Stage, metrics: Path) -> None:
        self.progress, self.last = None, time.monotonic()

    @unless_away
    def progressed(self, stage: Stage, line: Mapping[str, Any]) -> None:
        from prefect.artifacts import create_progress_artifact, update_progress_artifact

        if not line.get("of") or time.monotonic() - self.last < 10:
            return
        self.last = time.monotonic()
        share = 100.0 * line["step"] / line["of"]
        if self.progress is None:
            key = f"progress-{_slug(stage.name)}"
            self.progress = create_progress_artifact(progress=share, key=key, description=stage.title)
        else:
            update_progress_artifact(self.progress, progress=share)

    @unless_away
    def finished(self, stage: Stage, artifact: Artifact, *, reused: bool, seconds: float) -> None:
        from prefect.artifacts import create_table_artifact, update_progress_artifact

        if self.progress is not None:
            update_progress_artifact(self.progress, progress=100.0)
            self.progress = None
        how = "reused" if reused else f"in {seconds:.0f} s"
        rows = [{"number": "made", "value": how}, {"number": "key", "value": artifact.digest[:16]}]
        rows += [{"number": k, "value": f"{v:.6g}"} for k, v in numbers_of(artifact.meta).items()][:60]
        key = f"result-{_slug(stage.name)}"
        create_table_artifact(table=rows, key=key, description=f"{stage.title}: results")
        if (artifact.path / "report.html").exists():
            self._report(artifact.path / "report.html")

    def _report(self, file: Path) -> None:
        """Link to the report, or its path: browsers block file:// links."""
        from prefect.artifacts import create_link_artifact, create_markdown_artifact

        where = f"`{file.resolve()}` on {platform.node()}"
        page = self.tracking.artifact_url(file.name, wait_seconds=5.0) if self.tracking else None
        if page:
            text = f"The file: {where}"
            create_link_artifact(link=page, link_text="evaluation report", key="report", description=text)
        else:
            create_markdown_artifact(markdown=f"Evaluation report: {where}", key="report")

    @unless_away
    def failed(self, stage: Stage, error: BaseException) -> None:
        from prefect.artifacts import create_markdown_artifact

        if isinstance(error, Exception):
            text = redacted(f"**{type(error).__name__}**\n\n{error}")
            create_markdown_artifact(markdown=text, key=f"error-{_slug(stage.name)}")


def _slug(name: str) -> str:
    """A valid Prefect artifact key: lowercase letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
