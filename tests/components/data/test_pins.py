"""Data pins: a changed file or a moved branch changes the recipe's keys."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ratchet.components.data import pins
from ratchet.components.data.digests import digest
from ratchet.components.errors import SourceError
from ratchet.components.recipes.recipe import dump
from ratchet.components.storage.store import Store
from ratchet.tasks.pipeline import Pipeline

FIRST, SECOND = "a" * 40, "b" * 40


def opened(home: Path, source: str, *more: str) -> Pipeline:
    return Pipeline.open("sft", home=home, profile="test", overrides=[f"data.source={source}", *more])


def test_changed_content_changes_the_key_and_a_new_mtime_does_not(tmp_path: Path) -> None:
    data = tmp_path / "chats.jsonl"
    data.write_text('{"prompt": "hi", "completion": "yes", "label": true}\n')
    first = opened(tmp_path, f"path:{data}")
    assert first.recipe.data.sha256 == digest(data) and digest(data) in dump(first.recipe, first.profile)
    os.utime(data, (1, 1))
    assert opened(tmp_path, f"path:{data}").run.name == first.run.name
    data.write_text(data.read_text() * 2)
    second = opened(tmp_path, f"path:{data}")
    assert second.run.name != first.run.name and second.stages["sft"].key != first.stages["sft"].key
    assert second.stages["model_policy"].key == first.stages["model_policy"].key
    with pytest.raises(SourceError, match="pin"):  # resuming the first run would mix two versions of the data
        Pipeline.again(dump(first.recipe, first.profile), home=tmp_path, run="again").make("raw")
    assert opened(tmp_path, f"path:{data}", f"data.sha256={'f' * 64}").recipe.data.sha256 == "f" * 64, (
        "a pin of the user's was replaced"
    )
    absent = opened(tmp_path, f"path:{tmp_path / 'chat.jsonl'}")
    with pytest.raises(SourceError, match=r"chat\.jsonl.*'chats\.jsonl'"):
        absent.make("raw")


def test_a_large_file_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pins._CachedDigests, "LARGE", 4)
    model, read = tmp_path / "model", []
    model.mkdir()
    (model / "model.safetensors").write_text("many weights")
    (model / "a").write_text("b")
    monkeypatch.setattr(pins, "digest", lambda path, *rest: read.append(path.name) or digest(path, *rest))

    def pin() -> str | None:
        return pins._pin(f"path:{model}", None, tmp_path / "home", "model_policy")[1]

    expected = digest(model)
    assert pin() == expected and read == ["model", "a", "model.safetensors"]
    assert pin() == expected and read[3:] == ["model", "a"]
    (model / "model.safetensors").write_text("other weights")
    assert pin() == digest(model) != expected and read[5:] == ["model", "a", "model.safetensors"]


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> dict[str, str | None]:
    """A fake Hub: commits by address. The real client is tested in test_sources.py."""
    known: dict[str, str | None] = {}
    monkeypatch.setattr(pins, "commit", lambda rest: known.get(rest))
    return known


def test_hub_branch_is_pinned_to_its_current_commit(hub: dict[str, str | None], tmp_path: Path) -> None:
    def pinned(address: str, sha256: str | None = None) -> tuple[str, str | None]:
        return pins._pin(address, sha256, tmp_path, "raw")

    hub |= {"org/chats": FIRST, "datasets/org/chats@v1!rows.jsonl": SECOND}
    assert pinned("hub:org/chats") == (f"hub:org/chats@{FIRST}", None)
    assert pinned("hub:datasets/org/chats@v1!rows.jsonl") == (
        f"hub:datasets/org/chats@{SECOND}!rows.jsonl",
        None,
    )
    hub["org/chats"] = SECOND
    assert pinned("hub:org/chats") == (f"hub:org/chats@{SECOND}", None)
    for kept in (
        f"hub:org/chats@{FIRST}",
        f"hub:org/chats@{FIRST}!rows.jsonl",
        "pypi:a==1",
        "generate:tiny?seed=0",
        "hub:org/unknown",
    ):
        assert pinned(kept) == (kept, None)
    assert pinned("hub:org/chats", "0" * 64) == ("hub:org/chats", "0" * 64)


def test_unreachable_hub_uses_the_last_download(
    hub: dict[str, str | None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    store = Store(tmp_path)
    for age, commit in ((100, SECOND), (200, FIRST)):
        with store.working("raw", commit) as work:
            (work.product / "rows").write_text("x")
            artifact = store.publish(
                work, "raw", commit, "data", [], {"source": f"hub:org/chats@{commit}!rows"}
            )
        os.utime(artifact.path / "manifest.json", (age, age))
    for branch, commit in (
        ("org/chats", SECOND),
        ("org/chats@old", SECOND),
        ("org/chats", FIRST),
        ("org/chats", "c" * 40),
        ("org/chats@new", FIRST),
    ):
        hub[f"{branch}!rows"] = commit
        pins._pin(f"hub:{branch}!rows", None, tmp_path, "raw")
    hub.clear()
    assert not caplog.text
    for branch, commit in (("", FIRST), ("@old", SECOND), ("@new", FIRST)):  # none has fetched the third
        assert pins._pin(f"hub:org/chats{branch}!rows", None, tmp_path, "raw") == (
            f"hub:org/chats@{commit}!rows",
            None,
        )
        assert f"hub:org/chats{branch}: the Hub is unreachable; using commit {commit[:12]}" in caplog.text
    assert pins._pin("hub:org/chats@v3!rows", None, tmp_path, "raw") == ("hub:org/chats@v3!rows", None), (
        "of this branch nothing is known"
    )
    assert pins._pin("hub:org/chat", None, tmp_path, "raw") == ("hub:org/chat", None)
    assert pins._pin("hub:org/chats!rows", None, tmp_path, "model_policy") == ("hub:org/chats!rows", None)


def test_scheduled_run_uses_the_new_data_and_reports_drift(
    fresh_home: Callable[[str], Path], tmp_path: Path
) -> None:
    from ratchet.tasks.data.drift import check_data_drift

    home, data, moved = fresh_home("home"), tmp_path / "chats.jsonl", []
    for words in (3, 12):
        rows = [
            {
                "messages": [
                    {"role": "user", "content": f"question {i}: " + "why " * (i % 5 + 1)},
                    {"role": "assistant", "content": f"answer {i}: " + "because it is so " * (words + i % 3)},
                ]
            }
            for i in range(200)
        ]
        data.write_text("".join(json.dumps(row) + "\n" for row in rows))
        night = opened(
            home, f"path:{data}", "data.transforms=[]", "data.parser=auto", "data.sft.min_rating=null"
        )
        night.begin()
        for name in ("model_policy", "raw", "drafts", "curated"):
            night.make(name)
        moved.append({shift.what for shift in check_data_drift(night)})
        night.end("finished")
    assert moved == [set(), {"length in tokens"}]
    assert "length in tokens" in (night.run.path / "drift.json").read_text()
