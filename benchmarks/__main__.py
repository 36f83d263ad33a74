"""`python -m benchmarks`: the tasks of `works.py` against other libraries, scaling, and orchestration
overhead.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
from pathlib import Path

from benchmarks import growth, orchestration, report
from benchmarks.child import device
from benchmarks.compare import ROOT, compare, runner, tricks
from benchmarks.environments import python_of
from benchmarks.works import WORKS, in_precision
from ratchet.components.errors import RatchetError
from ratchet.components.models.products import has_bfloat16
from ratchet.tasks.process.launch import ENVIRONMENT

OTHERS = ("growth", "orchestration")
OWN = ("transformers",)  # peers installed in this project's environment


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--work",
        default=",".join([*WORKS, *OTHERS]),
        help="which, with commas between (default: all): " + ", ".join([*WORKS, *OTHERS]),
    )
    parser.add_argument("--model", choices=("smollm2", "tiny"), default="smollm2")
    parser.add_argument(
        "--repeats",
        type=int,
        default=3,
        help="rounds of ours and peer in turn; the first also finds the peer's best setting",
    )
    parser.add_argument(
        "--precision",
        choices=("float32", "bfloat16"),
        default="float32",
        help="bfloat16: mixed precision on both sides, with the tolerances of works.BFLOAT16",
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument(
        "--tricks", action="store_true", help="also ours against ours with each trick switched off"
    )
    parser.add_argument("--without", default="", help="peers to leave out, with commas between")
    parser.add_argument(
        "--python",
        action="append",
        default=[],
        metavar="PEER=PATH",
        help="an environment that is there already",
    )
    parser.add_argument(
        "--home", type=Path, default=Path("out"), help="whose store holds model and data, or will"
    )
    parser.add_argument("--out", type=Path, default=Path("out/benchmarks"))
    parser.add_argument("--environments", type=Path, default=Path(".venv-benchmarks"))
    parser.add_argument(
        "--default-run-seconds", type=float, default=960.0, help="how long `ratchet run instruct` takes here"
    )
    given = parser.parse_args()
    wanted = given.work.split(",")
    unknown = [name for name in wanted if name not in (*WORKS, *OTHERS)]
    if unknown or given.repeats < 1:
        parser.error(
            f"--work {', '.join(unknown)} does not exist; there are {', '.join((*WORKS, *OTHERS))}"
            if unknown
            else "--repeats is at least 1"
        )
    if given.precision == "bfloat16" and not has_bfloat16():
        parser.error("--precision bfloat16: this processor multiplies no bfloat16 in hardware; use float32")
    try:
        measure_all(given, wanted)
    except (RatchetError, RuntimeError) as error:
        sys.exit(f"{error}")


def measure_all(given: argparse.Namespace, wanted: list[str]) -> None:
    """Run the selected benchmarks. Each result is written as soon as it is measured, so an interrupted run
    keeps its results.
    """
    out, without = given.out / given.model, given.without.split(",")
    environment = {**os.environ, "OMP_NUM_THREADS": str(given.threads), "MKL_NUM_THREADS": str(given.threads)}
    head = f"{hardware(given.threads)}, model {given.model}, {given.precision}\n"
    compared = [in_precision(WORKS[name], given.precision) for name in wanted if name in WORKS]
    out.mkdir(parents=True, exist_ok=True)
    if compared:
        pythons = {k: Path(v).absolute() for k, _, v in (pair.partition("=") for pair in given.python)}
        for name in sorted(
            {peer.name for work in compared for peer in work.peers} - {*OWN, *pythons, *without}
        ):
            kind = "vllm-cuda" if name == "vllm" and device() == "cuda" else name
            pythons[name] = python_of(kind, given.environments.absolute())
        subprocess.run(
            [
                sys.executable,
                "-m",
                "benchmarks.inputs",
                "--model",
                given.model,
                "--home",
                str(given.home.absolute()),
                "--folder",
                str((given.out / "inputs").absolute()),
            ],
            cwd=ROOT,
            check=True,
        )
        measure = runner(
            pythons, given.out / "inputs" / f"{given.model}.json", given.threads, given.precision
        )
        rows, kept, worth, worth_kept = [], [], [], []
        for work in compared:
            peers = [peer for peer in work.peers if peer.name not in without]
            found, results = compare(work, peers, measure, repeats=given.repeats, say=say)
            rows, kept = rows + found, kept + results
            report.write(out, "peers", rows, kept, head)
            if given.tricks:
                found, results = tricks(work, measure, repeats=given.repeats, say=say)
                worth, worth_kept = worth + found, worth_kept + results
                report.write(out, "tricks", worth, worth_kept, head)
        print((out / "peers.md").read_text())
    if "growth" in wanted:
        points = growth.measured(given.model, out, given.threads, {**environment, **ENVIRONMENT}, say)
        if points:
            report.save_csv(out / "growth.csv", points)
            report.curves(out / "growth.png", points)
    if "orchestration" in wanted:
        found = orchestration.measured(
            out / "orchestration",
            environment,
            repeats=given.repeats,
            run_seconds=given.default_run_seconds,
            say=say,
        )
        text = orchestration.table(found)
        (out / "orchestration.md").write_text(head + "\n" + text)
        print(text)
    print(f"written to {out}")


def hardware(threads: int) -> str:
    """The GPU that all sides use, else the processor."""
    if device() == "cuda":
        import torch

        return f"{torch.cuda.get_device_name()}, torch {torch.__version__}, CUDA {torch.version.cuda}"
    return f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores, {threads} threads"


def say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    main()
