"""The run's page in the Prefect UI: name, progress, a table per stage, the report, summary."""

from __future__ import annotations

import platform
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from httpx import TransportError
from prefect import artifacts

from ratchet.components.errors import redacted
from ratchet.components.recipes.plan import Stage
from ratchet.components.types import Artifact
from ratchet.tasks.pipeline import Pipeline, Watcher
from ratchet.tasks.tracking.outcome import markdown, numbers_of, outcome
from ratchet.tasks.tracking.upload import BackgroundUploader

AWAY_SECONDS = 300.0
"""Pause after a failed call: Prefect's client retries for more than a minute per call, and a run makes
dozens.
"""


class PrefectPage(Watcher):
    """Watcher that creates Prefect artifacts: progress of long stages, a table per stage, a link to the
    report.
    """

    def __init__(self, tracking: BackgroundUploader | None = None) -> None:
        self.tracking = tracking
        self.progress: Any = None
        self.last = 0.0
        self.away_until = 0.0

    def begin(self, run: str) -> None:
        """Rename the flow run to the run's name, which is known once the recipe is loaded."""
        from prefect.client.orchestration import get_client
        from prefect.runtime import flow_run

        if number := flow_run.id:
            with get_client(sync_client=True) as client:
                self._call(client.update_flow_run, number, name=run)

    def summary(self, pipeline: Pipeline) -> None:
        text = markdown(outcome(pipeline.run.path), pipeline.recipe.about)
        about = f"{pipeline.run.name}: stages and verdict"
        self._call(artifacts.create_markdown_artifact, markdown=text, key="run", description=about)

    def started(self, stage: Stage, metrics: Path) -> None:
        self.progress, self.last = None, time.monotonic()

    def progressed(self, stage: Stage, line: Mapping[str, Any]) -> None:
        if not line.get("of") or time.monotonic() - self.last < 10:
            return
        self.last = time.monotonic()
        share = 100.0 * line["step"] / line["of"]
        if self.progress is not None:
            self._call(artifacts.update_progress_artifact, self.progress, progress=share)
        else:
            given = {"progress": share, "key": f"progress-{_slug(stage.name)}", "description": stage.title}
            self.progress = self._call(artifacts.create_progress_artifact, **given)

    def finished(self, stage: Stage, artifact: Artifact, *, reused: bool, seconds: float) -> None:
        if self.progress is not None:
            self._call(artifacts.update_progress_artifact, self.progress, progress=100.0)
            self.progress = None
        how = "reused" if reused else f"in {seconds:.0f} s"
        rows = [{"number": "made", "value": how}, {"number": "key", "value": artifact.digest[:16]}]
        rows += [{"number": k, "value": f"{v:.6g}"} for k, v in numbers_of(artifact.meta).items()][:60]
        key, about = f"result-{_slug(stage.name)}", f"{stage.title}: results"
        self._call(artifacts.create_table_artifact, table=rows, key=key, description=about)
        if (artifact.path / "report.html").exists():
            self._report(artifact.path / "report.html")

    def _report(self, file: Path) -> None:
        """Link to the report, or its path: browsers block file:// links."""
        where = f"`{file.resolve()}` on {platform.node()}"
        page = self.tracking.artifact_url(file.name, wait_seconds=5.0) if self.tracking else None
        if page:
            given = {"link": page, "link_text": "evaluation report", "description": f"The file: {where}"}
            self._call(artifacts.create_link_artifact, key="report", **given)
        else:
            text = f"Evaluation report: {where}"
            self._call(artifacts.create_markdown_artifact, markdown=text, key="report")

    def failed(self, stage: Stage, error: BaseException) -> None:
        if isinstance(error, Exception):
            text = redacted(f"**{type(error).__name__}**\n\n{error}")
            self._call(artifacts.create_markdown_artifact, markdown=text, key=f"error-{_slug(stage.name)}")

    def _call(self, method: Callable[..., Any], *args: Any, **given: Any) -> Any:
        """Call Prefect, unless its server is known to be unreachable."""
        if time.monotonic() < self.away_until:
            return None
        try:
            return method(*args, **given)
        except TransportError:
            self.away_until = time.monotonic() + AWAY_SECONDS
            raise


def _slug(name: str) -> str:
    """A valid Prefect artifact key: lowercase letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
