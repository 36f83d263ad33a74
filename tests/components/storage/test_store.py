"""The artifact store: atomic publishing, damage, locks."""

from __future__ import annotations

import errno
import os
import shutil
import threading
from pathlib import Path

import pytest

from ratchet.components.errors import DamageError, StoreError
from ratchet.components.storage.run_directory import RunDirectory
from ratchet.components.storage.state import save_state
from ratchet.components.storage.store import (
    MANIFEST,
    Store,
    digest,
    disk_errors,
    read_manifest,
    write_atomic,
)

KEY = digest("a key")


def make(store: Store, text: str = "hello", key: str = KEY):
    with store.working("sft", key) as work:
        (work.product / "deep").mkdir(exist_ok=True)
        (work.product / "deep" / "file.txt").write_text(text)
        (work.progress / "checkpoint").write_text("half")
        return store.publish(work, "sft", key, "weights", ["parent"], {"loss": 1.0})


def test_publish_then_get(tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert store.get("sft", KEY) is None
    artifact = make(store)
    again = store.get("sft", KEY)
    assert again == artifact and again.meta == {"loss": 1.0} and again.parents == ("parent",)
    store.verify(artifact)
    assert not list((store.root / ".work").glob("sft-*/*"))  # progress is gone, the lock file alone stays


def test_a_directory_without_manifest_is_not_an_artifact(tmp_path: Path) -> None:
    store = Store(tmp_path)
    artifact = make(store)
    (artifact.path / MANIFEST).unlink()
    assert store.get("sft", KEY) is None
    remade = make(store, "anew")
    assert (remade.path / "deep" / "file.txt").read_text() == "anew"


def test_unpublished_progress_is_kept_for_the_next_attempt(tmp_path: Path) -> None:
    store = Store(tmp_path)
    with pytest.raises(RuntimeError), store.working("sft", KEY) as work:
        (work.progress / "checkpoint-3").mkdir()
        raise RuntimeError("killed")
    assert store.get("sft", KEY) is None
    with store.working("sft", KEY) as work:
        assert (work.progress / "checkpoint-3").is_dir()


def test_damaged_artifact_is_detected(tmp_path: Path) -> None:
    store = Store(tmp_path)
    artifact = make(store)
    file = artifact.path / "deep" / "file.txt"
    file.write_text("jello")  # same size: only the digest tells
    with pytest.raises(DamageError, match=r"file\.txt"):
        store.verify(artifact)
    assert store.get("sft", KEY) and store.intact("sft", KEY) is None
    file.write_text("shorter"[:3])
    with pytest.raises(DamageError, match=r"expected 5 bytes.*3"):
        store.get("sft", KEY)
    assert store.intact("sft", KEY) is None
    assert make(store) == artifact == store.intact("sft", KEY)
    (aside,) = store.root.glob(".replaced-sft-*")
    assert (aside / "deep" / "file.txt").read_text() == "sho"


def test_recomputed_artifact_must_equal_the_damaged_one(tmp_path: Path) -> None:
    """Otherwise downstream artifacts would no longer follow from their inputs, unnoticed."""
    store = Store(tmp_path)
    artifact = make(store)
    (artifact.path / "deep" / "file.txt").write_text("jello")
    with pytest.raises(StoreError, match=rf"{artifact.path}"):
        make(store, "another")
    assert (artifact.path / "deep" / "file.txt").read_text() == "jello" and not list(
        store.root.glob(".replaced-*")
    )
    with store.working("sft", KEY) as work:
        assert (work.product / "deep" / "file.txt").read_text() == "another", (
            "the work is kept for whoever accepts it"
        )
        shutil.rmtree(work.product)
        work.product.mkdir()
    text = (artifact.path / MANIFEST).read_text()
    (artifact.path / MANIFEST).write_text(
        text.replace('"sha256": "', '"sha256": "0', 1)
    )  # a manifest that contradicts itself proves nothing
    assert (
        make(store, "another").path == artifact.path
        and (artifact.path / "deep" / "file.txt").read_text() == "another"
    )


def test_the_advice_about_a_differing_recomputation_works(tmp_path: Path) -> None:
    """The refused attempt had written its manifest, which is no file of the next one's output."""
    store = Store(tmp_path)
    artifact = make(store)
    (artifact.path / "deep" / "file.txt").write_text("jello")
    with pytest.raises(StoreError, match=rf"remove {artifact.path} to continue"):
        make(store, "another")
    shutil.rmtree(artifact.path)
    assert make(store, "another").path == artifact.path
    assert store.intact("sft", KEY) is not None


def test_what_a_disturbed_write_left_is_not_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, or SIGKILL, while a file or a checkpoint is written leaves its temporary name."""
    undisturbed = make(Store(tmp_path / "undisturbed"))

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = Store(tmp_path / "disturbed")
    with monkeypatch.context() as context, store.working("sft", KEY) as work:
        context.setattr(os, "fsync", full)
        for write in (
            lambda: write_atomic(work.product / "metrics.jsonl", "{}"),
            lambda: write_atomic(work.product / "deep" / "file.txt", "hello"),
            lambda: save_state(work.product / "memories", {"step": 1}),
            lambda: save_state(work.progress / "checkpoint-1", {"step": 1}),
        ):
            with pytest.raises(StoreError, match="disk is full"):
                write()
    assert any(work.progress.iterdir()) and any(work.product.iterdir())
    with store.working("sft", KEY) as work:
        assert not any(work.progress.iterdir())
        (work.product / "deep").rmdir()
    again, before = (read_manifest(one.path) or {} for one in (make(store), undisturbed))
    assert again["files"] == before["files"] and again["content"] == before["content"]


def test_recomputed_report_may_differ(tmp_path: Path) -> None:
    """A report contains timings, and nothing is derived from it."""
    store = Store(tmp_path)
    for text in ("60 s", "61 s"):
        with store.working("evaluate", KEY) as work:
            (work.product / "report.html").write_text(text)
            artifact = store.publish(work, "evaluate", KEY, "report", [], {})
        assert (artifact.path / "report.html").read_text() == text
        (artifact.path / "report.html").write_text("none")


def test_stage_workspace_is_exclusive(tmp_path: Path) -> None:
    store, events = Store(tmp_path), []

    def second() -> None:
        with Store(tmp_path).working("sft", KEY):
            events.append("second")

    with store.working("sft", KEY):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join(0.3)
        events.append("first")
    thread.join(5)
    assert events == ["first", "second"]


def test_full_disk_is_an_error() -> None:
    with pytest.raises(StoreError, match="disk is full"), disk_errors("publishing sft"):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_write_atomic_replaces(tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    write_atomic(file, "one")
    write_atomic(file, "two")
    assert file.read_text() == "two" and os.listdir(tmp_path) == ["a.json"]


def test_a_run_directory_links_into_the_store(tmp_path: Path) -> None:
    artifact = make(Store(tmp_path))
    run = RunDirectory(tmp_path, "chat-1")
    run.open("recipe: chat\n")
    run.link("sft", artifact.path)
    run.link("sft", artifact.path)
    run.record(state="running")
    run.record(state="finished", extra=1)
    assert run.stages() == {"sft": artifact.path}
    assert '"state": "finished"' in (run.path / "run.json").read_text()
