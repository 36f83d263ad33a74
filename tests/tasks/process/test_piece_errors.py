"""Errors in the file of a piece: one line with file, line and message."""

from __future__ import annotations

import importlib.util
from multiprocessing import Pipe
from pathlib import Path

import pytest

from ratchet.components.errors import RecipeError
from ratchet.components.piece import describe
from ratchet.flows import cli
from ratchet.tasks.process.child import send_error
from ratchet.tasks.process.piece_errors import piece_error

FOLDER = "pieces/selectors"


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """write("text") -> the file of a selector `mine`."""
    monkeypatch.setattr("ratchet.components.piece.ROOT", tmp_path)
    (tmp_path / FOLDER).mkdir(parents=True)

    def write(text: str) -> Path:
        file = tmp_path / FOLDER / "mine.py"
        file.write_text(text)
        return file

    return write


def error_of_import(file: Path) -> BaseException:
    spec = importlib.util.spec_from_file_location("mine", file)
    assert spec and spec.loader
    try:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
    except Exception as error:
        return error
    raise AssertionError("nothing failed")


def test_a_syntax_error_names_file_line_message_and_code_with_the_exit_code_of_bad_input(
    write, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write("import ast\n\ndef mine(groups, ctx:\n    return groups\n")
    monkeypatch.setattr(cli, "app", lambda: describe("select", "mine"))
    monkeypatch.setattr(cli, "freeze", lambda: None)
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 2
    says = capsys.readouterr().err
    assert says.startswith(f"error: {file}, line 3: ") and "`def mine(groups, ctx:`" in says
    assert len(says.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "\nimport not_installed_here\n",
            "line 2: ModuleNotFoundError: No module named 'not_installed_here'",
        ),
        ("from math import cube_root\n", "line 1: ImportError: cannot import name 'cube_root'"),
        ("LIMIT = 3\nMOST = LIMITS + 1\n", "line 2: NameError: name 'LIMITS' is not defined"),
    ],
)
def test_an_error_of_an_import_names_file_line_and_message(write, text: str, says: str) -> None:
    file = write(text)
    found = piece_error(error_of_import(file))
    assert found is not None and found.startswith(f"{file}, {says}")


def test_a_stage_sends_it_as_bad_input(write, capsys: pytest.CaptureFixture[str]) -> None:
    file = write("import not_installed_here\n")
    receive, send = Pipe(duplex=False)
    send_error(send, "stage 'select'", error_of_import(file), "", "log.txt")
    kind, error = receive.recv()
    assert kind == "error" and isinstance(error, RecipeError)
    assert str(error).startswith(f"stage 'select': {file}, line 1: ModuleNotFoundError")


def test_other_errors_are_not_those_of_a_piece(write) -> None:
    write("")
    assert piece_error(ValueError("no")) is None
    with pytest.raises(SyntaxError) as raised:
        compile("def", "elsewhere.py", "exec")
    assert piece_error(raised.value) is None
