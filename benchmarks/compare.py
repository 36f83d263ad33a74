"""Paired comparison of this project and a peer, each in fresh processes, with a check that both computed the
same.
"""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.works import Peer, Work
from ratchet.tasks.process.launch import ENVIRONMENT

ROOT = Path(__file__).resolve().parent.parent
TOLERANCE = 1e-4
"""How far two libraries may be apart: |a - b| <= TOLERANCE x max(1, |b|), so absolute for losses, relative
for large sums.
"""
TIMEOUT = 3600.0
SWITCHES = {"memory_returned": "GLIBC_TUNABLES", "awake": "GOMP_SPINCOUNT"}
"""Settings of ours that leave out a variable of a stage's environment."""

Result = dict[str, Any]
"""What a process measured (see `child.main`), or `error` with the end of what it said."""
Measure = Callable[[str, str, str], Result]
"""(side, work, setting) -> result; a side is `ours` or a peer's name."""


@dataclass(frozen=True)
class Row:
    """A task against a peer. Ratios are of adjacent runs: median, minimum and maximum over the repeats."""

    work: str
    about: str
    against: str
    setting: str
    ours: float
    theirs: float
    speed: float
    speed_low: float
    speed_high: float
    speed_goal: float | None
    ours_mib: float
    theirs_mib: float
    memory: float
    memory_goal: float | None
    worst: str
    valid: bool

    @property
    def verdict(self) -> str:
        if not self.valid:
            return "invalid"
        met = [
            self.speed >= self.speed_goal if self.speed_goal else None,
            self.memory <= self.memory_goal if self.memory_goal else None,
        ]
        judged = [m for m in met if m is not None]
        return "" if not judged else "reached" if all(judged) else "not reached"


def runner(pythons: Mapping[str, Path], inputs: Path, threads: int, precision: str = "float32") -> Measure:
    """Function that measures one side in a fresh child process with `threads` threads; this project's side
    gets the environment variables of a stage.
    """
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": str(threads),
        "MKL_NUM_THREADS": str(threads),
        "HF_HUB_OFFLINE": "1",
        "TQDM_DISABLE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "TRL_EXPERIMENTAL_SILENCE": "1",
    }

    def measure(side: str, work: str, setting: str) -> Result:
        module = "benchmarks.ours" if side == "ours" else f"benchmarks.peer_{side}"
        command = [
            str(pythons.get(side, sys.executable)),
            "-m",
            module,
            "--work",
            work,
            "--setting",
            setting,
            "--inputs",
            str(inputs.resolve()),
            "--threads",
            str(threads),
            "--precision",
            precision,
        ]
        given = (
            {name: value for name, value in ENVIRONMENT.items() if name != SWITCHES.get(setting)}
            if side == "ours"
            else {}
        )
        return child(command, {**environment, **given})

    return measure


def child(command: Sequence[str], environment: Mapping[str, str]) -> Result:
    """The RESULT line of a process; an error with its last output if there is none."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=ROOT, env=dict(environment), timeout=TIMEOUT
        )
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {TIMEOUT:.0f} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
    if done.returncode or not lines:
        return {"error": f"exit code {done.returncode}: {(done.stderr or done.stdout)[-1500:]}"}
    return json.loads(lines[-1].removeprefix("RESULT "))


def rate(result: Result) -> float:
    """Throughput in tokens per second."""
    return sum(result["tokens"]) / sum(result["seconds"])


def disagreements(ours: Result, theirs: Result, loose: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    """Check → (largest difference, tolerance). Missing values and different lengths count as infinite."""
    found = {}
    for name in sorted(set(ours["checks"]) | set(theirs["checks"])):
        a, b = ours["checks"].get(name, []), theirs["checks"].get(name, [])
        apart = [abs(x - y) / max(1.0, abs(y)) for x, y in zip(a, b, strict=False)]
        whole = len(a) == len(b) > 0 and all(map(math.isfinite, apart))  # max() ignores NaN
        found[name] = (max(apart) if whole else math.inf, loose.get(name, TOLERANCE))
    if ours["tokens"] != theirs["tokens"] and "greedy_tokens" not in found:
        found["tokens"] = (math.inf, 0.0)
    return found


def agrees(ours: Result, theirs: Result, loose: Mapping[str, float]) -> bool:
    return all(difference <= limit for difference, limit in disagreements(ours, theirs, loose).values())


def compare(
    work: Work, peers: Sequence[Peer], measure: Measure, *, repeats: int, say: Callable[[str], None]
) -> tuple[list[Row], list[dict[str, Any]]]:
    """Alternate the sides, A B A B ...: the first round runs every setting of every peer, later rounds only
    the best. Returns rows and all results.

    Best is the fastest setting whose numbers agree with ours; if none agrees, the fastest, and the row is
    invalid.
    """
    kept: list[dict[str, Any]] = []

    def go(side: str, setting: str) -> Result:
        result = measure(side, work.name, setting)
        kept.append({"work": work.name, "side": side, "setting": setting, **result})
        say(
            f"{work.name:13s} {side:13s} {setting:13s} "
            + (
                result["error"].splitlines()[-1][:100]
                if "error" in result
                else f"{rate(result):9.1f} tokens/s  {result['peak_mib']:7.0f} MiB"
            )
        )
        return result

    pairs: dict[tuple[str, str], list[tuple[Result, Result]]] = {}
    wanted = {peer: peer.settings for peer in peers}
    for _ in range(repeats):
        ours = go("ours", "default")
        if "error" in ours:
            raise RuntimeError(f"our own side of {work.name!r} failed: {ours['error']}")
        for peer in peers:
            for setting in wanted[peer]:
                theirs = go(peer.name, setting)
                if "error" not in theirs:
                    pairs.setdefault((peer.name, setting), []).append((ours, theirs))
            tried = [s for s in peer.settings if (peer.name, s) in pairs]
            wanted[peer] = tuple(
                sorted(tried, key=lambda s: _quality(pairs[peer.name, s][0], work.loose))[-1:]
            )
    rows = [
        row(work, peer, wanted[peer][0], pairs[peer.name, wanted[peer][0]]) for peer in peers if wanted[peer]
    ]
    return rows, kept


def _quality(pair: tuple[Result, Result], loose: Mapping[str, float]) -> tuple[bool, float]:
    return agrees(*pair, loose), rate(pair[1])


def row(work: Work, peer: Peer, setting: str, pairs: Sequence[tuple[Result, Result]]) -> Row:
    """Summary of the repeats."""
    speeds = [rate(ours) / rate(theirs) for ours, theirs in pairs]
    memories = [ours["peak_mib"] / theirs["peak_mib"] for ours, theirs in pairs]
    apart: dict[str, tuple[float, float]] = {}
    for ours, theirs in pairs:
        for name, (difference, limit) in disagreements(ours, theirs, work.loose).items():
            apart[name] = (max(difference, apart.get(name, (0.0, limit))[0]), limit)
    return Row(
        work=work.name,
        about=work.about,
        against=peer.name,
        setting=setting,
        ours=statistics.median(rate(ours) for ours, _ in pairs),
        theirs=statistics.median(rate(theirs) for _, theirs in pairs),
        speed=statistics.median(speeds),
        speed_low=min(speeds),
        speed_high=max(speeds),
        speed_goal=peer.speed,
        ours_mib=max(ours["peak_mib"] for ours, _ in pairs),
        theirs_mib=max(theirs["peak_mib"] for _, theirs in pairs),
        memory=statistics.median(memories),
        memory_goal=peer.memory,
        worst=", ".join(
            f"{name} {difference:.0e}" + (f" > {limit:.0e}" if difference > limit else "")
            for name, (difference, limit) in apart.items()
        ),
        valid=all(difference <= limit for difference, limit in apart.values()),
    )


def tricks(
    work: Work, measure: Measure, *, repeats: int, say: Callable[[str], None]
) -> tuple[list[Row], list[dict[str, Any]]]:
    """Ablation: speed and memory with one optimisation switched off."""
    rows, kept = [], []
    for setting in work.tricks:

        def without(side: str, name: str, given: str, setting: str = setting) -> Result:
            return measure("ours", name, "default" if side == "ours" else setting)

        found, results = compare(work, [Peer("ours without", (setting,))], without, repeats=repeats, say=say)
        rows, kept = rows + found, kept + results
    return rows, kept


def plain(row: Row) -> dict[str, Any]:
    return {**asdict(row), "verdict": row.verdict}
