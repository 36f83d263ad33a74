"""What a stage puts on the Prefect page."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import pytest

from components.plan import Stage
from components.types import Artifact
from tasks.watchers import PrefectPage


def test_a_table_the_pictures_themselves_and_a_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: dict[str, dict[str, Any]] = {}
    for kind in ("image", "link", "table"):
        monkeypatch.setattr(f"prefect.artifacts.create_{kind}_artifact", lambda kind=kind, **given: made.setdefault(f"{kind} {given['key']}", given))
    (tmp_path / "plots").mkdir()
    (tmp_path / "plots" / "win_rates.png").write_bytes(b"png")
    (tmp_path / "report.html").write_text("")
    stage = Stage("evaluate", "evaluate", "report", {}, key="k" * 64)
    PrefectPage().finished(stage, Artifact("report", tmp_path, "k" * 64, (), {"win_rate": 0.684}), reused=False, seconds=3.0)
    assert set(made) == {"table result-evaluate", "image plot-win-rates", "link report"}
    image = made["image plot-win-rates"]
    assert image["image_url"] == "data:image/png;base64," + base64.b64encode(b"png").decode() and image["description"] == "evaluate: win rates"
    assert {"number": "win_rate", "value": "0.684"} in made["table result-evaluate"]["table"]
