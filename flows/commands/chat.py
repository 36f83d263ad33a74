"""`ratchet chat`: chat with one or several models in the terminal, side by side if it is wide enough."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ratchet.components.errors import RatchetError, RecipeError, nearest
from ratchet.flows.commands.options import OUT, Home
from ratchet.flows.display import open_console
from ratchet.flows.terminal import Tail, printable, stoppable

if TYPE_CHECKING:
    from ratchet.components.inference.conversation import Answer, Conversation, Settings

COLUMN, REFRESHES = 38, 20
"""Narrowest column in characters; refreshes of the screen a second."""
COLOURS = ("cyan", "green", "magenta", "yellow", "blue")
HELP = """\
/reset            forget the conversation
/temperature 0.7  0 is greedy
/tokens 128       largest number of tokens per answer
/help             this list
/quit             or Ctrl-D
Ctrl-C stops the answers; the conversation goes on."""


class Chat:
    """An interactive session. `models`: title → conversation; `settings` are shared. `seed` None: a new
    random seed per question.
    """

    def __init__(
        self,
        models: Mapping[str, Conversation],
        settings: Settings,
        console: Console,
        seed: int | None = None,
    ) -> None:
        self.models, self.settings, self.console, self.seed = models, settings, console, seed
        self.turn = 0

    def ask(self, question: str) -> dict[str, Answer]:
        """Stream every model's answer: side by side, or one after the other on a narrow screen. Ctrl-C stops
        all of them.
        """
        from ratchet.components.inference.conversation import Answer

        seed = secrets.randbits(31) if self.seed is None else self.seed + self.turn
        self.turn += 1
        answers = {title: Answer() for title in self.models}
        together = self.console.is_terminal and self.console.width >= COLUMN * len(answers)
        streams = {title: model.answer(question, self.settings, seed) for title, model in self.models.items()}
        with stoppable() as stopped:
            for titles in [list(answers)] if together else [[title] for title in answers]:
                live = Live(
                    console=self.console,
                    get_renderable=lambda titles=titles: Tail(self._layout(titles, answers)),
                    refresh_per_second=REFRESHES,
                    transient=True,
                )
                with live if self.console.is_terminal else contextlib.nullcontext():
                    while (waiting := [one for one in titles if not answers[one].stop]) and not stopped():
                        for title in waiting:
                            answers[title] = next(streams[title])
                    for title in waiting:
                        streams[title].close()  # pyright: ignore[reportAttributeAccessIssue]
                        answers[title].stop = "stopped"
                self.console.print(self._layout(titles, answers))
                if self.console.is_terminal or len(self.models) > 1:
                    self.console.print()
                if stopped():
                    break
        for answer in answers.values():
            answer.stop = answer.stop or "stopped"  # stopped before its first token
        return answers

    def _layout(self, titles: Sequence[str], answers: Mapping[str, Answer]) -> Table:
        """One column per model: title (if several), answer, stop reason."""
        table = Table.grid(padding=(0, 3, 0, 0), expand=self.console.is_terminal)
        for _ in titles:
            table.add_column(ratio=1, overflow="fold")
        if len(self.models) > 1:
            table.add_row(*map(self._title, titles))
        table.add_row(*(_cell(answers[title]) for title in titles))
        return table

    def _title(self, title: str) -> Text:
        return Text(printable(title), style=f"bold {COLOURS[list(self.models).index(title) % len(COLOURS)]}")

    def banner(self, paths: Mapping[str, Path]) -> Table:
        """Title and directory of every model."""
        table = Table.grid(padding=(0, 2, 0, 0))
        for title, path in paths.items():
            table.add_row(self._title(title), Text(printable(str(path)), style="dim", overflow="fold"))
        return table

    def command(self, line: str) -> bool:
        """Execute a `/` command; False if it quits. `RecipeError` if it is unknown or its value invalid."""
        word, _, value = line[1:].strip().partition(" ")
        value = value.strip()
        if word in ("quit", "exit"):
            return False
        if word == "help":
            self.console.print(HELP, markup=False)
        elif word == "reset":
            for model in self.models.values():
                model.history = []
            self.turn = 0
            self._say("the conversation is forgotten")
        elif word in ("temperature", "tokens"):
            if value:
                setattr(self.settings, word, _number(word, value))
            self._say(f"{word} {getattr(self.settings, word)}")
        else:
            known = ("reset", "temperature", "tokens", "help", "quit")
            raise RecipeError(f"unknown command {word!r}{nearest(word, known)}; /help lists the commands")
        return True

    def _say(self, text: str) -> None:
        self.console.print(printable(text), style="dim", markup=False)

    def converse(self) -> None:
        """Read questions and commands until the end of input."""
        typed = sys.stdin.isatty()
        while True:
            try:
                line = input("> " if typed else "").strip()
                if line and not line.startswith("/"):
                    self.ask(line)
                elif line and not self.command(line):
                    return
            except KeyboardInterrupt:
                self.console.print()
                self._say("Ctrl-D ends")
            except EOFError:
                self.console.print()
                return
            except RatchetError as error:
                self.console.print(Text(printable(f"error: {error}"), style="red"))


def _cell(answer: Answer) -> Text:
    text = printable(answer.text.strip()) or ("(empty)" if answer.stop == "end" else "")
    cell = Text(text, style="" if answer.text.strip() else "dim")
    if answer.note:
        note = Text(printable(f"({answer.note})"), style="red" if answer.error else "dim italic")
        cell = Text("\n" if text else "").join([cell, note])
    return cell


def _number(name: str, text: str) -> float | int:
    least: float = 1 if name == "tokens" else 0.0
    try:
        value = type(least)(text)
    except ValueError:
        value = -1
    if not least <= value < float("inf"):
        raise RecipeError(f"/{name}: expected a number of at least {least}, got {text!r}")
    return value


def titled(models: Sequence[str], home: Path) -> dict[str, Path]:
    """Title → directory of every model; duplicate titles get their source's name as prefix."""
    from ratchet.tasks.registry.weights import weights_of

    opened = [(name, weights_of(name, home)) for name in dict.fromkeys(models)]
    titles = [title for _, paths in opened for title in paths]
    return {
        title if titles.count(title) == 1 else f"{name} {title}" if len(paths) > 1 else name: path
        for name, paths in opened
        for title, path in paths.items()
    }


def chat(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...",
            help="RUN (its base, SFT and final model), RUN/STAGE, a directory, or a registered model: name, "
            "name:version or name@alias.",
        ),
    ],
    home: Home = OUT,
    once: Annotated[
        str | None, typer.Option(help="Answer this message once with each model and exit.")
    ] = None,
    temperature: Annotated[float, typer.Option(min=0.0, help="Sampling temperature; 0 is greedy.")] = 0.7,
    tokens: Annotated[int, typer.Option(min=1, help="Largest number of tokens per answer.")] = 256,
    seed: Annotated[
        int | None, typer.Option(min=0, help="Random seed. Default: a new one for each question.")
    ] = None,
) -> None:
    """Chat with one or several models side by side. With --once, exit code 1 if a model fails."""
    paths = titled(models, home)
    from ratchet.tasks.process.launch import environment

    # read by torch and tokenizers at import; what is set already stays
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", **environment(), **os.environ}
    from transformers.utils import logging

    from ratchet.components.inference.conversation import Conversation, Settings

    logging.disable_progress_bar()
    console = open_console()
    with console.status("loading") if console.is_terminal else contextlib.nullcontext():
        opened = {title: Conversation(path) for title, path in paths.items()}
    session = Chat(opened, Settings(temperature, tokens), console, seed)
    if once is not None:
        if any(answer.error for answer in session.ask(once).values()):
            raise typer.Exit(1)
        return
    console.print(session.banner(paths))
    console.print(Text("/help lists the commands, Ctrl-C stops an answer, Ctrl-D ends", style="dim"))
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  (`input` edits lines and keeps a history with it)
    session.converse()
