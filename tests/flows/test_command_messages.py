"""Commands given a name that nothing has: what the message says, and that nothing is left behind."""

from __future__ import annotations

import errno
import json
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

import ratchet
from ratchet.components.errors import RatchetError, RecipeError, ServiceError, SourceError
from ratchet.components.recipes.check_data import check_files
from ratchet.components.recipes.recipe import load
from ratchet.flows import cli
from ratchet.flows.cli import app
from ratchet.flows.startup import set_environment_defaults
from ratchet.tasks.pipeline import Pipeline
from ratchet.tasks.tracking.server import tracking_uri


def refused(*arguments: str) -> str:
    with pytest.raises(RatchetError) as error:
        CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_certify_checks_its_files_before_a_run_begins(tmp_path: Path, tiny_model: Path) -> None:
    missing = refused("certify", str(tiny_model), "--data", "nope.jsonl", "--home", str(tmp_path))
    assert "--data" in missing and "nope.jsonl" in missing and "folder of the recipe" not in missing
    assert "MODEL" in refused("certify", "no/model", "--data", "nope.jsonl", "--home", str(tmp_path))
    (tmp_path / "d.jsonl").write_text(json.dumps({"prompt": "what?", "completion": "it"}) + "\n")
    refused("certify", str(tiny_model), "--data", str(tmp_path / "d.jsonl"), "--home", str(tmp_path))
    assert not (tmp_path / "runs").exists()


def test_a_certificate_that_fails_leaves_a_failed_run(
    tmp_path: Path, tiny_model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: Pipeline, name: str) -> None:
        self.failing = name
        raise SourceError("no such thing")

    monkeypatch.setattr(Pipeline, "make", fails)
    monkeypatch.setattr("ratchet.components.recipes.check_data.check_files", lambda recipe: None)
    (tmp_path / "d.jsonl").write_text("{}\n")
    refused("certify", str(tiny_model), "--data", str(tmp_path / "d.jsonl"), "--home", str(tmp_path))
    (file,) = (tmp_path / "runs").glob("*/run.json")
    run = json.loads(file.read_text())
    assert run["state"] == "failed" and "no such thing" in run["error"] and run["failed_stage"]


def test_messages_name_all_that_a_command_takes(tmp_path: Path) -> None:
    home = ("--home", str(tmp_path))
    assert "neither a run under" in refused("compare", "nope", "nope2", *home)
    assert "neither a run under" in refused("export", "nope", str(tmp_path / "to"), *home)
    (tmp_path / "y").mkdir()
    assert "items.jsonl" in refused("label", str(tmp_path / "y"), *home)


def test_forgetting_an_annotator_whom_nobody_knows_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "q").mkdir()
    (tmp_path / "q" / "items.jsonl").write_text("")
    message = refused("label", str(tmp_path / "q"), "--forget", "ann", "--home", str(tmp_path))
    assert "no labels by an annotator 'ann'" in message


def test_overrides_take_paths_and_refuse_other_objects(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"set\['data\.source'\].*object"):
        ratchet.load_recipe("sft", set={"data.source": object()})
    assert ratchet.load_recipe("sft", set={"name": Path("mine")}).name == "mine"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("models.policy={source: org/name, format: auto}", "'hub:org/name'"),
        ("data.source=org/name", "'hub:datasets/org/name'"),
        ("data.source='hub:datasets/name'", "hub:datasets/org/name"),
    ],
)
def test_an_address_on_the_hub_needs_scheme_and_organisation(change: str, message: str) -> None:
    with pytest.raises(SourceError) as error:
        check_files(load("sft", overrides=[change])[0])
    assert message in str(error.value)


def test_the_status_of_a_claim_that_does_not_exist_is_refused() -> None:
    assert "no recipe named 'nope'" in refused("claims", "--status", "nope")
    assert "raft claims nothing" in refused("claims", "--status", "raft")


def test_gc_keeps_a_number_of_days(tmp_path: Path) -> None:
    for days in ("nan", "-1"):
        assert "--keep-days: expected 0 or more" in refused(
            "gc", "--home", str(tmp_path), "--keep-days", days
        )


def test_a_home_that_a_database_address_cannot_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(RecipeError, match=r"--home .*: got a path with '\?'"):
        tracking_uri(tmp_path / "a?b")


def test_a_home_where_no_folder_can_be_made_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    (tmp_path / "file").write_text("")
    with pytest.raises(ServiceError, match=r"--home .*file: no folder can be made there"):
        set_environment_defaults(tmp_path / "file")


@pytest.mark.parametrize(("command", "resumes"), [("run", True), ("stage", True), ("export", False)])
def test_only_a_command_that_resumes_says_so_when_the_disk_is_full(
    command: str, resumes: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "/out/store")

    monkeypatch.setattr(cli, "app", fails)
    monkeypatch.setattr(cli, "freeze", lambda: None)
    monkeypatch.setattr(sys, "argv", ["ratchet", command, "sft"])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    says = capsys.readouterr().err
    assert stopped.value.code == 1 and says.startswith("error: No space left on device: /out/store")
    assert ("the same command resumes" in says) == resumes
