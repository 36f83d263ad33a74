"""`ratchet chat`: with --once, and in an interactive terminal."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import signal
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest
from typer.testing import CliRunner

from ratchet.flows.cli import app
from ratchet.flows.commands.chat import titled
from ratchet.flows.terminal import printable

ROOT = Path(__file__).resolve().parents[2]
COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def ratchet(*arguments: str, code: int = 0) -> str:
    with patch.dict(os.environ):  # a command sets what torch reads as it loads
        done = CliRunner().invoke(app, ["chat", *arguments])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == code, done.output
    return done.output


def test_once_prints_one_answer_a_model_and_the_seed_decides_it(tiny_model: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.symlink_to(tiny_model)
    ask = (str(tiny_model), str(other), "--once", "hi", "--seed", "3", "--tokens", "3", "--temperature", "2")
    printed = ratchet(*ask)
    first, second = printed.strip().split("\n\n")
    assert first.split("\n")[0] == tiny_model.name and second.split("\n")[0] == "other"
    assert first.split("\n")[1:] == second.split("\n")[1:] and first.endswith("(cut at 3 tokens)")
    assert ratchet(*ask) == printed != ratchet(*(word if word != "3" else "5" for word in ask))


def sum_of(model: Path) -> str:
    """The tiny model's answer to "What is 3 + 4?", which depends on the machine."""
    return ratchet(str(model), "--once", "What is 3 + 4?", "--temperature", "0", "--seed", "1").strip()


def test_once_prints_the_answer_alone_for_one_model(tiny_model: Path) -> None:
    assert sum_of(tiny_model).isdigit()


def test_models_with_equal_titles_are_titled_by_their_argument(tmp_path: Path) -> None:
    for folder in ("a/model", "b/model", "c"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "config.json").write_text("{}")
    given = [str(tmp_path / folder) for folder in ("a/model", "b/model", "c")]
    assert list(titled(given, tmp_path)) == [given[0], given[1], "c"]


def test_control_characters_do_not_reach_the_terminal() -> None:
    assert printable("a\x1b[2J\x07\x9b\r\nb\tc é🙂") == "a␛[2J␇␡␍\nb\tc é🙂"


class Terminal:
    """`ratchet chat` on a pseudo-terminal of so many columns."""

    def __init__(self, columns: int, *arguments: str) -> None:
        self.seen, self.at = "", 0
        self.pid, self.file = pty.fork()
        if self.pid == 0:
            os.chdir(ROOT)
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # ignored in a background job, and inherited
            env = {
                **os.environ,
                "TERM": "xterm-256color",
                "PYTHONPATH": str(ROOT / "infra" / "package"),
            }  # not C's own, to which readline adds COLUMNS
            os.execve(
                sys.executable,
                [sys.executable, "-m", "ratchet.flows.cli", "chat", *arguments],
                {k: v for k, v in env.items() if k not in ("NO_COLOR", "COLUMNS", "LINES")},
            )
        termios.tcsetwinsize(
            self.file, (24, columns)
        )  # before the program, which loads torch first, asks for it

    def expect(self, text: str, seconds: float = 300) -> str:
        """What came until `text`, without colours."""
        end = time.monotonic() + seconds
        while True:
            plain = COLOURS.sub("", self.seen).replace("\r", "")
            if text in plain[self.at :]:
                found = plain[self.at : plain.index(text, self.at) + len(text)]
                self.at += len(found)
                return found
            assert time.monotonic() < end, f"no {text!r} in {plain[self.at :]!r}"
            if select.select([self.file], [], [], 1)[0]:
                try:
                    self.seen += os.read(self.file, 65536).decode(errors="replace")
                except OSError:  # the program has ended
                    assert text in plain[self.at :], f"it ended without {text!r}: {plain[self.at :]!r}"

    def rest(self) -> str:
        """What comes until the program ends, without colours."""
        with contextlib.suppress(AssertionError):
            self.expect("\0")
        return COLOURS.sub("", self.seen).replace("\r", "")

    def type(self, keys: str) -> None:
        os.write(self.file, keys.encode())

    def interrupt(self, text: str) -> None:
        """Ctrl-C until it says so: one that comes as the prompt is being written is lost."""
        for _ in range(30):
            self.type("\x03")
            with contextlib.suppress(AssertionError):
                self.expect(text, seconds=5)
                return
        raise AssertionError(f"Ctrl-C is not answered with {text!r}")

    def code(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.fixture
def terminal(tiny_model: Path) -> Iterator[Terminal]:
    session = Terminal(100, str(tiny_model), "--temperature", "0", "--seed", "1")
    yield session
    os.close(session.file)


def test_interactive_session_answers_sets_options_and_quits(terminal: Terminal, tiny_model: Path) -> None:
    terminal.expect("Ctrl-D ends")
    terminal.expect("> ")
    terminal.type("What is 3 + 5\x7f4?\r")  # with a key corrected
    terminal.expect(sum_of(tiny_model))
    terminal.expect("> ")
    terminal.type("/tokens 2\r/tokens x\r/temprature\rhi\r")
    terminal.expect("tokens 2")
    terminal.expect("expected a number of at least 1, got 'x'")
    terminal.expect("did you mean 'temperature'")
    terminal.expect("(cut at 2 tokens)")
    terminal.expect("> ")
    terminal.interrupt("Ctrl-D ends")
    terminal.type("/reset\r")
    terminal.expect("the conversation is forgotten")
    terminal.expect("> ")
    terminal.type("\x04")
    assert terminal.code() == 0


def test_ctrl_c_stops_the_answer_and_the_next_question_is_answered(tiny_model: Path, tmp_path: Path) -> None:
    long = tmp_path / "long"
    long.mkdir()
    for file in tiny_model.iterdir():
        (long / file.name).symlink_to(file)
    (long / "config.json").unlink()
    config = json.loads((tiny_model / "config.json").read_text())
    (long / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 100_000}))
    person = Terminal(
        100, str(long), "--temperature", "50", "--tokens", "50000", "--seed", "1"
    )  # which hardly ever draws the stop token
    person.expect("> ")
    for _ in range(20):  # now and then it ends by itself first, and the key comes to the empty prompt
        person.type("hi\r")
        person.expect("hi\n")
        time.sleep(0.1)
        person.type("\x03")
        output = person.expect("> ")
        if "(stopped)" in output:
            break
        person.expect("> ")
    assert "(stopped)" in output
    person.type("/temperature 0\r/tokens 30\r/reset\rWhat is 3 + 4?\r")
    person.expect("forgotten")
    person.expect(sum_of(tiny_model))
    person.type("/quit\r")
    assert person.code() == 0
    os.close(person.file)


@pytest.mark.parametrize(
    ("columns", "titles"),
    [(120, r"{0} +twin"), pytest.param(60, r"{0}\s+{1}\s+twin", marks=pytest.mark.slow)],
)
def test_answers_are_side_by_side_on_a_wide_terminal(
    columns: int, titles: str, tiny_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "twin").symlink_to(tiny_model)
    person = Terminal(
        columns, str(tiny_model), str(tmp_path / "twin"), "--temperature", "0", "--once", "What is 3 + 4?"
    )
    screen = person.rest()
    output = sum_of(tiny_model)
    assert re.search(titles.format(re.escape(tiny_model.name), output), screen) and screen.count(output) >= 2
    assert person.code() == 0
