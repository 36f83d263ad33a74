"""Exchange of artifacts through a shared address: identical bytes on every machine, or an error and an
unchanged store.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from ratchet.components.errors import RecipeError, ServiceError, StoreError
from ratchet.components.storage.store import Store, digest, read_manifest
from ratchet.components.types import Artifact
from ratchet.tasks.remote.exchange import Exchange


def product(home: Path, stage: str = "sft", **files: str) -> Artifact:
    store, key = Store(home), digest([stage, files])
    with store.working(stage, key) as work:
        for name, text in (files or {"model.safetensors": "weights", "nested/empty": ""}).items():
            (work.product / name).parent.mkdir(parents=True, exist_ok=True)
            (work.product / name).write_text(text)
        return store.publish(work, stage, key, "weights", ["p"], {"loss": 1.5}, {"does": stage})


def there(exchange: Path) -> list[str]:
    return sorted(str(p.relative_to(exchange)) for p in exchange.rglob("*") if p.is_file())


def test_push_and_pull_preserve_every_byte(tmp_path: Path) -> None:
    artifact, exchange = product(tmp_path / "here"), Exchange(str(tmp_path / "between"))
    other = Store(tmp_path / "there")
    assert exchange.pull(other, "sft", artifact.digest) is None, "nobody has sent it"
    exchange.push(artifact)
    exchange.push(artifact)
    arrived = exchange.pull(other, "sft", artifact.digest)
    assert arrived is not None and (arrived.kind, arrived.digest, arrived.parents, arrived.meta) == (
        artifact.kind,
        artifact.digest,
        artifact.parents,
        artifact.meta,
    )
    before, after = read_manifest(artifact.path) or {}, read_manifest(arrived.path) or {}
    assert (after["files"], after["content"], after["made_with"]) == (
        before["files"],
        before["content"],
        before["made_with"],
    )
    assert (arrived.path / "nested/empty").read_text() == ""
    assert len(there(tmp_path / "between")) == 3, (
        "two files by content, one manifest, and no half of anything"
    )
    assert not (other.root / ".work" / arrived.path.name).exists()


def test_equal_files_are_stored_and_downloaded_once(tmp_path: Path) -> None:
    exchange = Exchange(str(tmp_path / "between"))
    one, two = product(tmp_path / "here", a="same"), product(tmp_path / "here", b="same")
    exchange.push(one)
    exchange.push(two)
    assert len([f for f in there(tmp_path / "between") if f.startswith("files/")]) == 1
    for file in (tmp_path / "between").rglob("*.json"):
        file.write_text("rubbish")
    assert Exchange(str(tmp_path / "between")).pull(Store(tmp_path / "here"), "sft", one.digest) == one


def test_interrupted_push_is_completed_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    artifact, exchange = product(tmp_path / "here", a="1", b="2"), Exchange(str(tmp_path / "between"))
    put, sent = exchange._put, list[str]()

    def once(file: Path, where: str) -> None:
        if sent:
            raise KeyboardInterrupt
        sent.append(where)
        put(file, where)

    monkeypatch.setattr(exchange, "_put", once)
    with pytest.raises(KeyboardInterrupt):
        exchange.push(artifact)
    other = Exchange(str(tmp_path / "between"))
    assert other.pull(Store(tmp_path / "there"), "sft", artifact.digest) is None, (
        "half a product was taken for a whole one"
    )
    other.push(artifact)
    assert other.pull(Store(tmp_path / "there"), "sft", artifact.digest) is not None


def test_pull_ignores_partial_work_of_the_same_stage(tmp_path: Path) -> None:
    artifact, exchange, other = (
        product(tmp_path / "here", a="1"),
        Exchange(str(tmp_path / "between")),
        Store(tmp_path / "there"),
    )
    exchange.push(artifact)
    with other.working("sft", artifact.digest) as work:
        (work.product / "left").write_text("by a killed stage")
    (file,) = (tmp_path / "between/files").iterdir()
    file.rename(tmp_path / "aside")
    assert exchange.pull(other, "sft", artifact.digest) is None
    with other.working("sft", artifact.digest) as work:
        assert (work.product / "left").read_text() == "by a killed stage", (
            "which would have gone on from there"
        )
    (tmp_path / "aside").rename(file)
    arrived = exchange.pull(other, "sft", artifact.digest)
    assert arrived is not None and sorted(p.name for p in arrived.path.iterdir()) == ["a", "manifest.json"]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda manifest: manifest["files"].update(
                {"../../escape": next(iter(manifest["files"].values()))}
            ),
            "names '../../escape', which leads out",
        ),
        (
            lambda manifest: manifest["files"].update(
                {"/etc/escape": next(iter(manifest["files"].values()))}
            ),
            "names '/etc/escape', which leads out",
        ),
        (lambda manifest: manifest.update(key="0" * 64), "invalid manifest"),
        (lambda manifest: manifest.pop("files"), "invalid manifest"),
    ],
)
def test_pull_rejects_an_invalid_manifest(damage: Any, message: str, tmp_path: Path) -> None:
    artifact, exchange = product(tmp_path / "here", a="1"), Exchange(str(tmp_path / "between"))
    exchange.push(artifact)
    (file,) = (tmp_path / "between/products").iterdir()
    manifest = json.loads(file.read_text())
    damage(manifest)
    file.write_text(json.dumps(manifest))
    with pytest.raises(StoreError, match=message):
        exchange.pull(Store(tmp_path / "there"), "sft", artifact.digest)
    assert (
        not list((tmp_path / "there").rglob("escape"))
        and Store(tmp_path / "there").get("sft", artifact.digest) is None
    )


def test_pull_detects_a_changed_byte(tmp_path: Path) -> None:
    artifact, exchange = product(tmp_path / "here", a="12345"), Exchange(str(tmp_path / "between"))
    exchange.push(artifact)
    (file,) = (tmp_path / "between/files").iterdir()
    file.write_text("12346")
    there = Store(tmp_path / "there")
    with pytest.raises(StoreError, match=rf"{file.name} .*SHA-256"):
        exchange.pull(there, "sft", artifact.digest)
    assert there.get("sft", artifact.digest) is None
    file.unlink()
    assert exchange.pull(there, "sft", artifact.digest) is None
    exchange.push(artifact)
    arrived = exchange.pull(there, "sft", artifact.digest)
    assert arrived is not None and (arrived.path / "a").read_text() == "12345"


def test_pull_replaces_a_damaged_local_artifact(tmp_path: Path) -> None:
    """A worker's own store may contain a damaged copy of an input."""
    artifact, exchange, there = (
        product(tmp_path / "here", a="12345"),
        Exchange(str(tmp_path / "between")),
        Store(tmp_path / "there"),
    )
    exchange.push(artifact)
    for bad in ("12346", "123456"):
        arrived = exchange.pull(there, "sft", artifact.digest)
        assert arrived is not None and (arrived.path / "a").read_text() == "12345"
        (arrived.path / "a").write_text(bad)
    arrived = exchange.pull(there, "sft", artifact.digest)
    assert arrived is not None and arrived == there.intact("sft", artifact.digest)


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("artifacts", "is a different folder for each worker"),
        ("s4://bucket/folder", "unknown file system 's4'; did you mean 's3'"),
        (
            "s3://me:hunter22@bucket/folder",
            r"s3://\*\*\*@bucket/folder: addresses must not contain passwords",
        ),
    ],
)
def test_invalid_exchange_address_is_an_error(address: str, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        Exchange(address)


@pytest.mark.skipif(importlib.util.find_spec("s3fs") is None, reason="s3fs comes with the extra `team`")
def test_push_and_pull_through_an_object_store(object_store: subprocess.Popen[bytes], tmp_path: Path) -> None:
    artifact = product(tmp_path / "here", a="1" * 100_000, **{"nested/b": ""})
    exchange = Exchange("s3://ratchet/artifacts")
    assert exchange.pull(Store(tmp_path / "there"), "sft", artifact.digest) is None
    exchange.push(artifact)
    arrived = Exchange("s3://ratchet/artifacts").pull(Store(tmp_path / "there"), "sft", artifact.digest)
    assert (
        arrived is not None
        and (read_manifest(arrived.path) or {})["files"] == (read_manifest(artifact.path) or {})["files"]
    )
    import boto3

    (entry,) = [e for n, e in (read_manifest(artifact.path) or {})["files"].items() if n == "a"]
    boto3.client("s3").put_object(
        Bucket="ratchet", Key=f"artifacts/files/{entry['sha256']}", Body=b"2" * 100_000
    )
    with pytest.raises(StoreError, match="SHA-256"):
        Exchange("s3://ratchet/artifacts").pull(Store(tmp_path / "elsewhere"), "sft", artifact.digest)
    with pytest.raises(ServiceError, match="s3://nobody/artifacts"):
        Exchange("s3://nobody/artifacts").push(artifact)
    object_store.kill()
    object_store.wait()
    with pytest.raises(ServiceError, match=r"s3://ratchet/artifacts"):
        exchange.pull(Store(tmp_path / "later"), "sft", artifact.digest)
