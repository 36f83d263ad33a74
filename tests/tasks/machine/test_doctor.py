"""`ratchet doctor`: each check on a healthy and on a broken installation."""

from __future__ import annotations

from ratchet.tasks.machine import doctor


def test_crashing_check_does_not_hide_others(tmp_path, monkeypatch):
    def broken():
        raise ValueError("no answer from http://me:hunter22@gpu")

    monkeypatch.setattr(doctor.checks, "gpu", broken)
    found = {f.name: f for f in doctor.examine(tmp_path / "home", tmp_path)}
    assert (
        len(found) == 8
        and found["GPU"].state == "fail"
        and found["GPU"].seen.endswith("ValueError: no answer from http://***@gpu")
    )
    assert all(f.do for f in found.values() if f.state != "ok") and not (tmp_path / "home").exists()
    assert "no server configured" in found["Prefect"].seen
