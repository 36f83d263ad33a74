"""Digests of the plans and of the outputs of some stages of recipes, with the code of the checkout that
PYTHONPATH names (see `carry_claims`).
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ratchet.components.recipes.plan import plain  # here in older checkouts too
from ratchet.flows.claim_records import profile_of
from ratchet.tasks.pipeline import Pipeline

IGNORED_FILES = ("manifest.json", "data_docs", "report.html")
"""Files and folders of an output that have a date or store keys in them and that no later stage reads; the
report shows what is in results.json.
"""
IGNORED_KEYS = re.compile(r"second|minutes|memory|resolved|lineage|^time$|_name_or_path")
"""Keys of an output's JSON that depend on the clock, on the machine, on store keys, or on other stages."""
Wanted = Mapping[str, tuple[Sequence[str], Sequence[int], Sequence[str]]]
"""Recipe -> stages to make, with what they need, seeds, and overrides."""


def outputs(home: Path, wanted: Wanted) -> dict[str, dict[str, str]]:
    """SHA-256 of the files of stages ("recipe seed stage" -> file -> digest), and of each plan ("recipe
    seed"). A stage that several recipes or seeds share is read once.
    """
    known: dict[str, dict[str, str]] = {}
    found: dict[str, dict[str, str]] = {}
    for recipe, (stages, seeds, overrides) in wanted.items():
        for seed in seeds:
            pipeline = Pipeline.open(
                recipe, home=home, overrides=[*overrides, f"seed={seed}"], profile=profile_of(recipe)
            )
            found[f"{recipe} {seed}"] = {"plan": _plan(pipeline)}
            for name in stages:
                key = pipeline.stages[name].key
                if key not in known:
                    known[key] = digests(_made(pipeline, name))
                found[f"{recipe} {seed} {name}"] = known[key]
    return found


def digests(folder: Path) -> dict[str, str]:
    """SHA-256 of the files of an output, but for those of `IGNORED_FILES`, and for `IGNORED_KEYS` in
    JSON.
    """
    return {
        str(file.relative_to(folder)): hashlib.sha256(_content(file)).hexdigest()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and file.relative_to(folder).parts[0] not in IGNORED_FILES
    }


def _content(file: Path) -> bytes:
    if file.suffix not in (".json", ".jsonl"):
        return file.read_bytes()

    def kept(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: kept(one) for key, one in value.items() if not IGNORED_KEYS.search(key)}
        return [kept(one) for one in value] if isinstance(value, list) else value

    lines = file.read_text().splitlines() if file.suffix == ".jsonl" else [file.read_text()]
    return json.dumps([kept(json.loads(line)) for line in lines], sort_keys=True).encode()


def _plan(pipeline: Pipeline) -> str:
    """Digest of what every stage is given, but for the copy of the whole recipe that `evaluate` has."""
    given = {
        stage.name: [stage.does, dict(stage.inputs), {**plain(stage.options), "resolved": ""}]
        for stage in pipeline.stages.values()
    }
    return hashlib.sha256(json.dumps(given, sort_keys=True, default=str).encode()).hexdigest()


def _made(pipeline: Pipeline, name: str) -> Path:
    for needed in pipeline.stages[name].inputs.values():
        _made(pipeline, needed)
    return pipeline.make(name).path


if __name__ == "__main__":
    print("RESULT " + json.dumps(outputs(Path(sys.argv[1]), json.loads(sys.argv[2]))))
