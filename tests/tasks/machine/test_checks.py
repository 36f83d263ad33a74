"""Checks of the installation and the machine."""

from __future__ import annotations

from pathlib import Path

from ratchet.tasks.machine import checks


def test_untested_versions_are_reported(monkeypatch, tmp_path):
    versions = {"fastapi": "0.165.0", "sqlalchemy": "2.0.58", "prefect": "3.8.8"}
    monkeypatch.setattr(checks, "installed", versions.get)
    lock = tmp_path / "constraints.txt"
    lock.write_text("# made by a tool\nfastapi==0.150.0\nprefect==3.8.8\nabsent==1\n")
    found = checks.locked(lock)
    assert (
        found.state == "warn" and found.seen == "1 of 2 packages differ: fastapi 0.165.0 instead of 0.150.0"
    )
    assert checks.locked(tmp_path / "none").state == "warn"


def test_versions_that_pyproject_refuses_are_reported(monkeypatch):
    versions = {checks.DISTRIBUTION: "0.1", "fastapi": "0.165.0"}
    monkeypatch.setattr(checks, "installed", versions.get)
    monkeypatch.setattr(checks.metadata, "requires", lambda _: ["fastapi<0.151", "dvc>=3; extra == 'team'"])
    found = checks.packages_fit()
    assert found.state == "fail" and found.seen == "fastapi 0.165.0 is not <0.151" and found.do
    versions["fastapi"] = "0.150.0"
    assert checks.packages_fit().state == "ok"
    del versions["fastapi"]
    assert checks.packages_fit().seen == "fastapi is missing"


def test_a_local_build_of_a_pinned_version_is_that_version(monkeypatch, tmp_path):
    monkeypatch.setattr(checks, "installed", {"torch": "2.13.0+cpu"}.get)
    (tmp_path / "c.txt").write_text("torch==2.13.0\n")
    assert checks.locked(tmp_path / "c.txt").state == "ok"


def test_disk_and_write_access(tmp_path, monkeypatch):
    assert checks.writable(tmp_path / "not" / "yet").state == "ok"
    assert checks.writable(Path("/proc/nowhere")).state == "fail"
    for free, state in ((50e9, "ok"), (5e9, "warn"), (5e8, "fail")):
        monkeypatch.setattr(
            checks.shutil, "disk_usage", lambda _, free=free: type("Usage", (), {"free": free})
        )
        assert checks.disk(tmp_path).state == state
