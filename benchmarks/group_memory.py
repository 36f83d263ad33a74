"""`python -m benchmarks.group_memory`: peak memory of groups of published size, 160,000 answers of 2,048
tokens with mask and log-probs, eight a prompt: writing, reading, packing and annotating them.

Each part is a process of its own. Memory is over that after the imports: anonymous (what the process
allocated), and with the pages of the mapped temporary file, which the system takes back when it needs them.
The answers take 0.5 GB of disk in `--folder` (1.1 GB with the annotated ones) and, while they are used,
2.9 GB in the directory of TMPDIR (7 GB while they are annotated).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np

from ratchet.components.data.groups import read_groups, write_groups
from ratchet.components.training.loop import Named, prepare_groups
from ratchet.components.training.packing import pack
from ratchet.components.training.steps import step_groups
from ratchet.components.types import Columns, Context, Group, Prompt, Trajectory

TOKENS, EACH, BATCH, MICROBATCH = 2048, 8, 128, 16_384
FILE = "groups.parquet"


def synthetic(answers: int) -> Iterator[Group]:
    """Groups of `EACH` answers of `TOKENS` tokens, a quarter of them the prompt's, made one by one."""
    dice = np.random.default_rng(0)
    mask = np.arange(TOKENS) >= TOKENS // 4
    for number in range(answers // EACH):
        tokens = dice.integers(0, 128, (EACH, TOKENS), dtype=np.int32)
        tokens[:, : TOKENS // 4] = tokens[0, : TOKENS // 4]
        logprobs = -dice.integers(0, 128, (EACH, TOKENS)).astype(np.float32) / 16
        paths = tuple(
            Trajectory(
                ({"role": "assistant", "content": f"answer {number} {i} " * 64},),
                {"tokens": tokens[i]},
                mask,  # pyright: ignore[reportArgumentType]
                logprobs[i],  # pyright: ignore[reportArgumentType]
                "policy",
            )
            for i in range(EACH)
        )
        rewards = dice.normal(size=EACH).tolist()
        yield Group(
            Prompt(f"p{number}", ({"role": "user", "content": "question"},)), paths, {"reward.a": rewards}
        )


def write(folder: Path, answers: int, steps: int | None) -> None:
    write_groups(folder / FILE, synthetic(answers))


def read(folder: Path, answers: int, steps: int | None) -> None:
    found = [t for group in read_groups(folder / FILE) for t in map(_sum, group.trajectories)]
    assert len(found) == answers // EACH * EACH


def _sum(path: Trajectory) -> float:
    return float(
        np.asarray(path.inputs["tokens"]).sum() + np.asarray(path.logprobs).sum() + np.sum(path.mask)
    )


def train(folder: Path, answers: int, steps: int | None) -> None:
    """The micro-batches of an epoch, or of its first `steps`, in the order of training."""
    groups, options = read_groups(folder / FILE), {"batch": BATCH // EACH}
    planned, rows = -(-len(groups) // options["batch"]), 0
    for step in range(planned)[:steps]:
        for batch in pack(step_groups(groups, options, step, seed=0), unit="group", tokens=MICROBATCH):
            rows += len(batch.ids)
    assert rows == min(answers // EACH * EACH, BATCH * len(range(planned)[:steps]))


def prepare(folder: Path, answers: int, steps: int | None) -> None:
    """A reference model's log-probs, here made up, added and written as by the stages."""

    def reference(groups: Sequence[Group], ctx: Context) -> Columns:
        dice = np.random.default_rng(len(groups))
        values = -dice.integers(0, 128, (len(groups), EACH, TOKENS)) / 16
        return {"logprobs.reference": values.tolist()}

    annotator = Named("scoring.logprobs", reference, by_group=True)
    groups = prepare_groups(read_groups(folder / FILE), [annotator], Context())
    write_groups(folder / "prepared.parquet", groups)


PARTS: dict[str, Callable[[Path, int, int | None], None]] = {
    "write": write,
    "read": read,
    "train": train,
    "prepare": prepare,
}


def resident() -> tuple[float, float]:
    """Anonymous and all resident memory of this process in MiB."""
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(lines["RssAnon"].split()[0]) / 1024, int(lines["VmRSS"].split()[0]) / 1024


def measured(part: str, folder: Path, answers: int, steps: int | None) -> dict[str, float]:
    """Peaks of a part in this process, sampled every 20 ms, and its seconds."""
    import torch

    torch.zeros(1)
    before, peaks, ended = resident(), [0.0, 0.0], threading.Event()

    def watch() -> None:
        while not ended.wait(0.02):
            peaks[:] = [
                max(peak, now - start) for peak, now, start in zip(peaks, resident(), before, strict=True)
            ]

    thread = threading.Thread(target=watch)
    thread.start()
    began = time.monotonic()
    try:
        PARTS[part](folder, answers, steps)
    finally:
        ended.set()
        thread.join()
    seconds = time.monotonic() - began
    return {"anonymous_mib": round(peaks[0]), "resident_mib": round(peaks[1]), "seconds": round(seconds, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--answers", type=int, default=160_000)
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()), help="where the file goes"
    )
    parser.add_argument("--steps", type=int, help="pack the first optimizer steps only (default: an epoch)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--part", choices=PARTS, help="only this part, with the file that `write` left")
    given = parser.parse_args()
    if given.part:
        print(json.dumps(measured(given.part, given.folder, given.answers, given.steps)))
        return
    found = {}
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        for part in PARTS:
            command = [sys.executable, "-m", "benchmarks.group_memory", "--part", part, "--folder", folder]
            command += ["--answers", str(given.answers)]
            command += ["--steps", str(given.steps)] if given.steps else []
            run = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            found[part] = json.loads(run.stdout)
            if not given.json:
                print(part, found[part], flush=True)
    if given.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
