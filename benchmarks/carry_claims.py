"""`python -m benchmarks.carry_claims OLD`: keep stored verdicts over a change of code that changes no output.

`OLD` is a checkout of the revision before, in which the verdicts are fresh. Stages of the arms of a claim
whose definitions differ between the two checkouts are made in both, with every seed that a claim may use. If
the arms' plans and all files of these stages are the same (but for manifests and the pages of the validation,
which have a date), later stages read the same, and the verdict gets its key of the present definitions; else
it stays stale. Meant for changes of how data are read. `--short`: for changes of code that every stage has
and that must not change what it computes, two small steps of every stage of every arm are compared instead,
with one seed; claims about a downloaded policy stay stale. Where training or sampling changed, `ratchet
claims --stale` measures again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.short_runs import small_steps
from benchmarks.stage_outputs import Wanted
from ratchet.components.piece import ROOT as COMPONENTS
from ratchet.components.recipes.plan import our_sources, plan
from ratchet.components.recipes.recipe import load
from ratchet.components.recipes.source_keys import starts
from ratchet.components.storage.definitions import Sources
from ratchet.flows.claim_records import PAGE, Arms, key_of, profile_of, read, write

HERE, PACKAGE = Path(__file__).resolve().parents[1], COMPONENTS.parent
Outputs = Mapping[str, Mapping[str, str]]
"""What `stage_outputs.outputs` returns."""


def differing(recipe: str, new: Sources, old: Sources, overrides: Sequence[str] = ()) -> list[str]:
    """Stages of a recipe that reach a definition which is another one in the sources `old`."""
    loaded, profile = load(recipe, overrides=[*overrides, "seed=0"], profile=profile_of(recipe))
    return [
        stage.name
        for stage in plan(loaded, profile).values()
        if new.digest(start := starts(stage.does, stage.options)) != _digest(old, start)
    ]


def _digest(sources: Sources, start: set[tuple[str, str]]) -> str:
    """Digest of what these definitions reach; empty if the sources lack one of them."""
    try:
        return sources.digest(start)
    except KeyError:
        return ""


def made(tree: Path, home: Path, wanted: Wanted) -> Outputs:
    """The outputs of stages of recipes with seeds, made with the code of a checkout."""
    script = HERE / "benchmarks" / "stage_outputs.py"
    return json.loads(
        _output(tree, "-P", str(script), str(home), json.dumps(wanted)).rpartition("RESULT ")[2]
    )


def unchanged(arms: Mapping[str, Sequence[str]], first: Outputs, second: Outputs) -> list[str]:
    """Claims whose arms have the same plans and outputs in both, with every seed. `arms`: claim -> its recipe
    and baselines.
    """

    def of(recipe: str, outputs: Outputs) -> dict[str, Mapping[str, str]]:
        return {name: files for name, files in outputs.items() if name.partition(" ")[0] == recipe}

    return [
        claim
        for claim, recipes in arms.items()
        if all(of(one, first) == of(one, second) != {} for one in recipes)
    ]


def _is_generated(recipe: str) -> bool:
    return load(recipe)[0].models["policy"].source.startswith("generate:")


def _output(tree: Path, *arguments: str) -> str:
    """What Python prints with the code of a checkout."""
    environment = {**os.environ, "PYTHONPATH": str(tree / "infra" / "package")}
    return subprocess.run(
        [sys.executable, *arguments], cwd=tree, env=environment, stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.carry_claims", description=__doc__)
    parser.add_argument("old", type=Path, help="checkout in which the stored verdicts are fresh")
    parser.add_argument("--home", type=Path, default=Path("out/carry_claims"))
    parser.add_argument("--short", action="store_true", help="two small steps of every stage, one seed")
    given = parser.parse_args()
    old, home = given.old.resolve(), given.home.resolve()
    status = json.loads(_output(old, "-m", "ratchet.flows.cli", "claims", "--status", "--json"))
    verdicts = {name: one for name, one in read().items() if status.get(name) == "current"}
    claims = {name: claim for name in verdicts if (claim := load(name)[0].claim)}
    arms = {name: [name, *claim.recipes] for name, claim in claims.items()}
    if given.short:
        arms = {name: own for name, own in arms.items() if all(map(_is_generated, own))}
    seeds: dict[str, set[int]] = defaultdict(set)
    for name in arms:
        claim = claims[name]
        for recipe in arms[name]:
            seeds[recipe] |= set(range(claim.first_seed, claim.first_seed + claim.most_seeds))
    if given.short:
        seeds = defaultdict(set, {recipe: {min(own)} for recipe, own in seeds.items()})
    new = our_sources({PAGE: ""})
    before = Sources(old, new.pieces, {old / PAGE.relative_to(PACKAGE): ""})
    small = {recipe: small_steps(load(recipe)[0]) if given.short else [] for recipe in seeds}
    wanted = {
        recipe: (differing(recipe, new, before, small[recipe]), sorted(own), small[recipe])
        for recipe, own in seeds.items()
    }
    stages = sorted({name for names, _, _ in wanted.values() for name in names})
    print(f"stages to make, of {len(wanted)} arms: {', '.join(stages) or 'none'}")
    with ThreadPoolExecutor() as pool:
        first, second = pool.map(
            lambda tree, name: made(tree, home / name, wanted), (old, HERE), ("old", "new")
        )
    kept, keys = unchanged(arms, first, second), Arms()
    write(dataclasses.replace(verdicts[name], key=key_of(name, keys)) for name in kept)
    print(f"{len(kept)} verdicts carried over; an output differs: {sorted(set(arms) - set(kept)) or 'none'}")


if __name__ == "__main__":
    main()
