r"""`python -m benchmarks.evidence`: the table of docs/results.md, out of runs that `ratchet compare` made.

    ratchet compare instruct instruct_dpo instruct_reward_labels instruct_offline instruct_best_of_n
    instruct_rlvr \
        --first-seed 2 --set data.seed=2 --metric final.reward.instructions
    python -m benchmarks.evidence --first-seed 2 --set data.seed=2

Rates and differences are means over seeds and held-out prompts, with 95 % t-intervals for new seeds and new
prompts (`components/evaluation/verdicts.py`, as `ratchet compare`); every difference is paired by seed and
prompt.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from ratchet.components.data.groups import read_groups
from ratchet.components.evaluation.verdicts import Effect, crossed
from ratchet.components.piece import build
from ratchet.components.types import Context
from ratchet.tasks.pipeline import Pipeline

RECIPES = (
    "instruct",
    "instruct_dpo",
    "instruct_reward_labels",
    "instruct_offline",
    "instruct_best_of_n",
    "instruct_rlvr",
)
SLICES = {
    "all prompts": ("seen", "new_wording", "new_family"),
    "trained families, trained wordings": ("seen",),
    "trained families, new wordings": ("new_wording",),
    "held-out families": ("new_family",),
}
Values = dict[str, np.ndarray]


def verified(path: Path) -> tuple[np.ndarray, list[str]]:
    """The share of verified answers of each prompt, and each prompt's kind of instruction."""
    groups = read_groups(path)
    rows = build("annotate", {"name": "rewards.instructions"})(groups, Context())["reward.instructions"]
    return np.array([np.mean(row) for row in rows]), [
        group.prompt.meta["instruction"]["kind"] for group in groups
    ]


def collect(recipes: list[str], seeds: range, home: Path, overrides: list[str]) -> tuple[Values, np.ndarray]:
    """Arm -> verified rate (seeds, prompts): base model and SFT model of the first recipe, the final model of
    each; the kinds (prompts).
    """
    rows: dict[str, list[np.ndarray]] = {}
    kinds: list[str] = []
    for seed in seeds:
        for i, recipe in enumerate(recipes):
            pipeline = Pipeline.open(recipe, home=home, overrides=[*overrides, f"seed={seed}"])
            answers = pipeline.stages["evaluate"].inputs
            for arm, title in (("base", "base"), ("initial", "SFT"), ("policy", recipe)):
                if arm == "policy" or i == 0:
                    folder = pipeline.artifact(answers[f"answers_{arm}"]).path
                    rates, found = verified(folder / "groups.parquet")
                    rows.setdefault(title, []).append(rates)
                    if kinds and found != kinds:
                        raise SystemExit(
                            f"{recipe}, seed {seed}: its evaluation has other prompts than the runs "
                            "before; compare runs of one data set"
                        )
                    kinds = found
    return {title: np.stack(matrix) for title, matrix in rows.items()}, np.array(kinds)


def percent(effect: Effect, sign: str = "") -> str:
    mean, low, high = (100 * end for end in (effect.mean, effect.low, effect.high))
    return f"{mean:{sign}.1f} [{low:{sign}.1f}, {high:{sign}.1f}]"


def table(values: Values, kinds: np.ndarray) -> str:
    """Markdown: the rate of each arm by kind of instruction, then differences on all prompts and on the
    trained families.
    """
    lines = [
        "| verified, % | "
        + " | ".join(f"{name} ({int(np.isin(kinds, own).sum())})" for name, own in SLICES.items())
        + " |",
        "|---" * 5 + "|",
    ]
    for title, matrix in values.items():
        lines.append(
            f"| {title} | "
            + " | ".join(percent(crossed(matrix[:, np.isin(kinds, own)])) for own in SLICES.values())
            + " |"
        )
    first = next(title for title in values if title not in ("base", "SFT"))
    for other in (title for title in values if title != first):
        gaps = values[first] - values[other]
        lines.append(
            f"| **{first} − {other}**, points | "
            + " | ".join(percent(crossed(gaps[:, np.isin(kinds, own)]), "+") for own in SLICES.values())
            + " |"
        )
    for title, matrix in values.items():
        lines.append(
            f"\n{title}, seed by seed: " + ", ".join(f"{100 * rate:.1f} %" for rate in matrix.mean(1))
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.evidence",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--home", type=Path, default=Path("out"))
    parser.add_argument("--recipes", default=",".join(RECIPES), help="with commas between")
    parser.add_argument("--set", action="append", default=[], help="as of `ratchet compare`")
    given = parser.parse_args()
    print(
        table(
            *collect(
                given.recipes.split(","),
                range(given.first_seed, given.first_seed + given.seeds),
                given.home,
                given.set,
            )
        )
    )


if __name__ == "__main__":
    main()
