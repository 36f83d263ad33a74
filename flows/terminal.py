"""Output to a terminal while a model answers: printable text, and Ctrl-C that stops the answer alone."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult


class Tail:
    """The last lines of a renderable that may be taller than the screen."""

    def __init__(self, whole: RenderableType) -> None:
        self.whole = whole

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.segment import Segment

        for line in console.render_lines(self.whole, options, pad=False)[-(console.height - 1) :]:
            yield from line
            yield Segment.line()


def printable(text: str) -> str:
    """The text with control characters replaced by visible symbols (␛), since a model's answer must not
    control the terminal.
    """
    return "".join(
        chr(0x2400 + ord(c)) if ord(c) < 32 and c not in "\n\t" else "\u2421" if 127 <= ord(c) < 160 else c
        for c in text
    )


@contextlib.contextmanager
def stoppable() -> Iterator[Callable[[], bool]]:
    """While active, Ctrl-C sets a flag instead of raising KeyboardInterrupt, and typed keys are not echoed.
    Yields a function that tells whether Ctrl-C was pressed.
    """
    pressed = []
    before = signal.signal(signal.SIGINT, lambda *_: pressed.append(True))
    try:
        with _no_echo():
            yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)


@contextlib.contextmanager
def _no_echo() -> Iterator[None]:
    if not sys.stdin.isatty():
        yield
        return
    import termios

    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    silent = list(before)
    silent[3] &= ~termios.ECHO
    termios.tcsetattr(terminal, termios.TCSADRAIN, silent)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)
