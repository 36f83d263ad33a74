"""Output to a terminal while a model answers: printable text, and Ctrl-C that stops the answer alone."""

from __future__ import annotations

import contextlib
import signal
import sys
import termios
from collections.abc import Callable, Iterator

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.segment import Segment

VISIBLE = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"}
VISIBLE |= dict.fromkeys(range(127, 160), 0x2421)
"""Control character -> visible symbol, such as ␛."""


class Tail:
    """The last lines of a renderable that may be taller than the screen."""

    def __init__(self, whole: RenderableType) -> None:
        self.whole = whole

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in console.render_lines(self.whole, options, pad=False)[-(console.height - 1) :]:
            yield from line
            yield Segment.line()


def printable(text: str) -> str:
    """The text with visible control characters, since a model's answer must not control the terminal."""
    return text.translate(VISIBLE)


@contextlib.contextmanager
def stoppable() -> Iterator[Callable[[], bool]]:
    """While active, Ctrl-C sets a flag instead of raising KeyboardInterrupt, and typed keys are not echoed.
    Yields a function that tells whether Ctrl-C was pressed.
    """
    pressed, before = [], termios.tcgetattr(sys.stdin) if sys.stdin.isatty() else None
    handler = signal.signal(signal.SIGINT, lambda *_: pressed.append(True))
    try:
        if before:
            silent = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, silent)
        yield lambda: bool(pressed)
    finally:
        if before:
            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
        signal.signal(signal.SIGINT, handler)
