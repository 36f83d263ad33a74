"""Are two mathematical expressions equal? math-verify decides, in a process of its own that a time and a memory limit can end; no piece itself.

No exception ends what sympy makes of 9^{9^{9^9}}, so `python expressions.py` answers lines of JSON, [gold, answer, seconds], with true or false, and
dies of a question that takes more processor time, whatever else the machine does. It reads LaTeX by a grammar, never by `eval`.
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
"""Characters of an expression that is compared at all."""
START = 300.0
PATIENCE = 20
"""Seconds by the clock for one of the processor."""


class Comparer:
    """The process, started at the first question and again after one that it did not survive."""

    def __init__(self) -> None:
        self.lock, self.process = threading.Lock(), None

    def __call__(self, gold: str, answer: str, seconds: float) -> bool:
        """Whether `answer` equals `gold`; not where it is too long, or where that takes more than `seconds` of the processor or the memory limit."""
        if max(len(gold), len(answer)) > LONGEST:
            return False
        with self.lock:
            if self.process is None:
                self.process = self.start()
            assert self.process.stdin and self.process.stdout
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.write(json.dumps([gold, answer, seconds]) + "\n")
                self.process.stdin.flush()
            line = self.process.stdout.readline() if self.ready(self.process, PATIENCE * seconds) else ""
            if not line:
                self.process.kill()
                self.process.communicate()
                self.process = None
            return line.strip() == "true"

    def start(self) -> subprocess.Popen[str]:
        process = subprocess.Popen([sys.executable, "-I", __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        if not self.ready(process, START) or not process.stdout or process.stdout.readline() != "ready\n":
            process.kill()
            raise RuntimeError("math-verify did not start; `pip install 'math-verify[antlr4_9_3]'` into the environment that runs this")
        return process

    @staticmethod
    def ready(process: subprocess.Popen[str], seconds: float) -> bool:
        return bool(select.select([process.stdout], [], [], seconds)[0])


equal = Comparer()


def answer_lines() -> None:
    """The process: one answer a line."""
    import logging
    import resource
    import signal

    from math_verify import LatexExtractionConfig, parse, verify

    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    logging.disable()

    def compare(*texts: str) -> bool:
        gold, answer = (parse(f"${text}$", [LatexExtractionConfig()], parsing_timeout=None) for text in texts)
        return bool(gold and answer and verify(gold, answer, timeout_seconds=None))

    compare("x + 1", "1 + x")  # what the libraries load late counts as their start
    print("ready", flush=True)
    for line in sys.stdin:
        gold, answer, seconds = json.loads(line)
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
        print(json.dumps(compare(gold, answer)), flush=True)
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


if __name__ == "__main__":
    answer_lines()
