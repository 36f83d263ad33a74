"""`python -m benchmarks.gpu` (`make gpu`), on a machine with a GPU: the tests of `tests/gpu`; the tasks of
`works.py` against TRL and vLLM in float32, whose numbers are compared, and in mixed precision; then a run of
`instruct` with the profile `gpu`. What came of it is written to `<out>/report.md`.

A part that fails does not keep the others from running, and the end of its log is in the report; the exit
code is 1 then. Started again, it measures again, and the run continues where it stopped.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.__main__ import hardware, say
from benchmarks.child import device
from benchmarks.compare import ROOT
from ratchet.tasks.tracking.outcome import outcome

PRECISIONS = ("float32", "bfloat16")
COMPARED = "sft,reward,dpo,grpo,sample,score,score_single"
REPORT = "report.md"


@dataclass(frozen=True)
class Part:
    """A command, and what came of it, as Markdown."""

    name: str
    command: tuple[str, ...]
    result: Callable[[], str]


def parts(out: Path, repeats: int) -> list[Part]:
    """The tests, the benchmarks in both precisions and the run, in the order in which they are done."""
    python, home = sys.executable, out / "home"
    tested = Part("tests", (python, "-m", "pytest", "tests/gpu"), lambda: "All passed.\n")
    compared = [
        Part(
            f"benchmarks in {precision}",
            (python, "-m", "benchmarks", "--work", COMPARED, "--precision", precision,
             "--repeats", str(repeats), "--home", str(home), "--out", str(out / precision)),
            (out / precision / "smollm2" / "peers.md").read_text,
        )
        for precision in PRECISIONS
    ]  # fmt: skip
    command = (python, "-m", "ratchet.flows.cli", "run", "instruct", "--profile", "gpu", "--home", str(home))
    return [tested, *compared, Part("instruct on the profile gpu", command, lambda: of_run(home))]


def of_run(home: Path) -> str:
    """Time, gates and result of the newest run of `instruct` below `home`, as Markdown."""
    newest = max((home / "runs").glob("instruct-*"), key=lambda path: path.stat().st_mtime)
    return table(outcome(newest))


def table(found: Mapping[str, Any]) -> str:
    """Markdown of a run's outcome: seconds of every stage, gates, champion."""
    lines = ["| stage | seconds |", "|---|---|"]
    lines += [f"| {one['name']} | {one['meta'].get('seconds', '')} |" for one in found["stages"]]
    lines += ["", "| gate | passed | |", "|---|---|---|"]
    lines += [
        f"| {gate['name']} | {'yes' if gate['passed'] else 'no'} | {gate['why']} |" for gate in found["gates"]
    ]
    ended = f"{found['state']}, champion: {'yes' if found['champion'] else 'no'}"
    return "\n".join([f"Run {found['run']}: {ended}.", "", *lines]) + "\n"


def run(part: Part, log: Path) -> int:
    """Run a part's command with its output in `log`; returns the exit code."""
    with log.open("w") as file:
        return subprocess.run(part.command, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT).returncode


def measure(
    todo: Sequence[Part], out: Path, head: str, execute: Callable[[Part, Path], int] = run
) -> list[str]:
    """Do every part and write the report after each; returns the names of those that failed."""
    out.mkdir(parents=True, exist_ok=True)
    failed, text = [], [f"# On {head}", ""]
    for part in todo:
        log, started = out / f"{part.name.replace(' ', '_')}.log", time.monotonic()
        say(f"{part.name}: log in {log}")
        code = execute(part, log)
        minutes = (time.monotonic() - started) / 60
        text += [f"## {part.name}", "", f"{minutes:.1f} minutes, exit code {code}.", ""]
        if code:
            failed.append(part.name)
            text += ["```text", *log.read_text().splitlines()[-20:], "```", ""]
        else:
            text += [part.result(), ""]
        (out / REPORT).write_text("\n".join(text))
    return failed


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("out/gpu"))
    parser.add_argument("--repeats", type=int, default=3, help="rounds of ours and peer in turn")
    given = parser.parse_args()
    if device() != "cuda":
        sys.exit(
            "torch sees no GPU here: run this on a machine with an NVIDIA GPU and a CUDA build of torch "
            "(`nvidia-smi` and `python -c 'import torch; print(torch.version.cuda)'` tell what is missing)"
        )
    out = given.out.absolute()
    failed = measure(parts(out, given.repeats), out, hardware(threads=0))
    say(f"written to {out / REPORT}")
    if failed:
        sys.exit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
