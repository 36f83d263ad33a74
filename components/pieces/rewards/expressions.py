"""Equality of mathematical expressions by math-verify, in a subprocess with CPU and memory limits. Not a
piece.

Evaluations such as 9^{9^{9^9}} in sympy cannot be interrupted by an exception. `python expressions.py`
therefore answers JSON lines [gold, answer, seconds] with true or false and is killed when a question exceeds
its CPU time. LaTeX is parsed by a grammar, never by `eval`.
"""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
import threading

MEMORY = 4 << 30
LONGEST = 500
"""Maximum length in characters; longer expressions are unequal."""
START = 300.0
WALL_FACTOR = 20
"""Wall-clock limit per second of CPU limit."""


class Comparer:
    """The subprocess, started at the first question and restarted after it was killed."""

    def __init__(self) -> None:
        self.lock, self.process = threading.Lock(), None

    def __call__(self, gold: str, answer: str, seconds: float) -> bool:
        """Whether `answer` equals `gold`; False if too long, or if the CPU limit `seconds` or the memory
        limit is exceeded.
        """
        if max(len(gold), len(answer)) > LONGEST:
            return False
        with self.lock:
            if self.process is None:
                self.process = self.start()
            assert self.process.stdin and self.process.stdout
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.write(json.dumps([gold, answer, seconds]) + "\n")
                self.process.stdin.flush()
            line = self.process.stdout.readline() if self.ready(self.process, WALL_FACTOR * seconds) else ""
            if not line:
                self.process.kill()
                self.process.communicate()
                self.process = None
            return line.strip() == "true"

    def start(self) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-I", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        if not self.ready(process, START) or not process.stdout or process.stdout.readline() != "ready\n":
            process.kill()
            raise RuntimeError(
                "math-verify did not start; `pip install 'math-verify[antlr4_9_3]'` into the environment "
                "that runs this"
            )
        return process

    @staticmethod
    def ready(process: subprocess.Popen[str], seconds: float) -> bool:
        return bool(select.select([process.stdout], [], [], seconds)[0])  # pyright: ignore[reportArgumentType]


equal = Comparer()


def answer_lines() -> None:
    """Main loop of the subprocess: one answer per line."""
    import logging
    import resource
    import signal

    from math_verify import LatexExtractionConfig, parse, verify

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    logging.disable()

    def compare(*texts: str) -> bool:
        gold, answer = (parse(f"${text}$", [LatexExtractionConfig()], parsing_timeout=None) for text in texts)  # pyright: ignore[reportArgumentType]
        return bool(gold and answer and verify(gold, answer, timeout_seconds=None))

    compare("x + 1", "1 + x")  # warm-up: lazy imports must not count against the first question
    print("ready", flush=True)
    for line in sys.stdin:
        gold, answer, seconds = json.loads(line)
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
        print(json.dumps(compare(gold, answer)), flush=True)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


if __name__ == "__main__":
    answer_lines()
