"""`python -m benchmarks.carry_claims OLD`: keep stored verdicts over a change of code that changes no output.

`OLD` is a checkout of the revision before, in which the verdicts are fresh. Stages of the arms of a claim
whose definitions differ between the two checkouts are made in both, with every seed that a claim may use. If
the arms' plans and all files of these stages are the same (but for manifests and the pages of the validation,
which have a date), later stages read the same, and the verdict gets its key of the present definitions; else
it stays stale. Meant for changes of how data are read; where training or sampling changed, `ratchet claims
--stale` measures again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ratchet.components.piece import ROOT as COMPONENTS
from ratchet.components.recipes.plan import our_sources, plan
from ratchet.components.recipes.recipe import load
from ratchet.components.recipes.schema_claim import MOST_SEEDS
from ratchet.components.recipes.source_keys import starts
from ratchet.components.storage.definitions import Sources
from ratchet.flows.claim_records import PAGE, Arms, key_of, profile_of, read, write

HERE, PACKAGE = Path(__file__).resolve().parents[1], COMPONENTS.parent
MAKE = """
import hashlib, json, sys
from pathlib import Path
from ratchet.components.piece import ROOT
from ratchet.components.recipes.recipe import plain
from ratchet.flows.claim_records import profile_of
from ratchet.tasks.pipeline import Pipeline

home, seeds, wanted = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
assert ROOT.resolve() == Path("components").resolve(), f"this is the code of {ROOT}"
known, found = {}, {}
for arm, stages in wanted.items():
    for seed in range(seeds):
        pipeline = Pipeline.open(arm, home=home, overrides=[f"seed={seed}"], profile=profile_of(arm))
        options = {
            stage.name: [stage.does, dict(stage.inputs), {**plain(stage.options), "resolved": ""}]
            for stage in pipeline.stages.values()
        }
        text = json.dumps(options, sort_keys=True, default=str)
        found[f"{arm} {seed}"] = {"plan": hashlib.sha256(text.encode()).hexdigest()}
        for name in stages:
            key = pipeline.stages[name].key
            if key not in known:
                def make(stage):
                    for needed in pipeline.stages[stage].inputs.values():
                        make(needed)
                    return pipeline.make(stage).path
                folder = make(name)
                files = {str(f.relative_to(folder)): f for f in sorted(folder.rglob("*")) if f.is_file()}
                known[key] = {
                    name: hashlib.sha256(file.read_bytes()).hexdigest()
                    for name, file in files.items()
                    if name != "manifest.json" and not name.startswith("data_docs")
                }
            found[f"{arm} {seed} {name}"] = known[key]
print("RESULT " + json.dumps(found))
"""


def differing(arm: str, new: Sources, old: Sources) -> list[str]:
    """Stages of a recipe that reach a definition which is another one in the sources `old`."""
    loaded, profile = load(arm, overrides=["seed=0"], profile=profile_of(arm))
    return [
        stage.name
        for stage in plan(loaded, profile).values()
        if new.digest(start := starts(stage.does, stage.options)) != old.digest(start)
    ]


def made(tree: Path, home: Path, wanted: Mapping[str, list[str]]) -> dict[str, dict[str, str]]:
    """SHA-256 of the files of stages, made with the code of a checkout: "arm seed stage" -> file -> digest;
    "arm seed" -> that of the plan.
    """
    done = subprocess.run(
        [sys.executable, "-c", MAKE, str(home), str(MOST_SEEDS), json.dumps(wanted)],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree / "infra" / "package")},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.rpartition("RESULT ")[2])


def same(arm: str, old: Mapping[str, object], new: Mapping[str, object]) -> bool:
    """Whether the outputs of an arm are the same in both, seed by seed."""
    own = [name for name in new if name.partition(" ")[0] == arm]
    return all(old[name] == new[name] for name in own)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.carry_claims", description=__doc__)
    parser.add_argument("old", type=Path, help="checkout in which the stored verdicts are fresh")
    parser.add_argument("--home", type=Path, default=Path("out/carry_claims"))
    given = parser.parse_args()
    old = given.old.resolve()
    status = subprocess.run(
        [sys.executable, "-m", "ratchet.flows.cli", "claims", "--status", "--json"],
        cwd=old,
        env={**os.environ, "PYTHONPATH": str(old / "infra" / "package")},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    fresh = json.loads(status.stdout)
    verdicts = {name: one for name, one in read().items() if fresh.get(name) == "current"}
    arms_of = {name: [name, *claim.recipes] for name in verdicts if (claim := load(name)[0].claim)}
    sources = our_sources({PAGE: ""})
    before = Sources(old, sources.pieces, {old / PAGE.relative_to(PACKAGE): ""})
    wanted = {arm: differing(arm, sources, before) for arms in arms_of.values() for arm in arms}
    print(
        f"stages to make, of {len(wanted)} arms: {sorted({name for one in wanted.values() for name in one})}"
    )
    with ThreadPoolExecutor() as pool:
        first, second = pool.map(
            lambda tree, name: made(tree, given.home.resolve() / name, wanted), (old, HERE), ("old", "new")
        )
    arms, kept = Arms(), []
    for name, members in arms_of.items():
        if all(same(arm, first, second) for arm in members):
            kept.append(dataclasses.replace(verdicts[name], key=key_of(name, arms)))
        else:
            print(f"{name}: an output differs; its verdict stays stale")
    write(kept)
    print(f"{len(kept)} verdicts carried over")


if __name__ == "__main__":
    main()
