"""`python -m benchmarks.labels`: how many labels each selector of pairs needs for the same accuracy of a
reward model, on verifiable instructions with a simulated annotator of known error.

Answers are those of the SFT policy to the prompts of the recipe `instruct` (its stage `compared`), with the
verifier's labels. A seed splits the prompts into a pool and a test set. Batches of pairs of the pool are
selected, labelled (a tie if the verifier gives both answers the same value, which costs a label and teaches
nothing; else the better answer, wrong with probability `--error`) and learnt from. The first two batches are
random.

The reward model is linear on features of an answer and its instruction, fitted as Bradley-Terry regression;
an ensemble is five such models on bootstrap samples of the labels. The features are countable traits (see
`traits`). No language model is trained: the experiment is about which pairs are labelled, and takes minutes
instead of days on two cores.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ratchet.components.data.groups import read_groups
from ratchet.components.data.instructions import checkers
from ratchet.components.data.instructions.families import FAMILIES
from ratchet.components.errors import RatchetError
from ratchet.components.evaluation.bootstrap import Interval, mean_interval
from ratchet.components.evaluation.linear import bradley_terry
from ratchet.components.piece import build
from ratchet.components.types import Context, Group

VERIFIED = "reward.instructions"
MEMBERS, BATCH, BUDGET = 5, 32, 320
PENALTY = 0.1
"""Of the squared weights; `uniform` is as accurate with 0.03 and 0.3, within a point (seeds 100 to 104)."""
RANDOM = 2
"""Batches of random pairs at the start."""
PAIRS = 6
"""Pairs of a pool prompt that can be selected, at most."""
COLUMNS = [f"scores.{member}" for member in range(MEMBERS)]
SELECTORS: Mapping[str, Mapping[str, Any]] = {
    "uniform": {"name": "uniform"},
    "small_margins": {"name": "small_margins"},
    "disagreement": {"name": "disagreement", "members": COLUMNS},
    "diverse": {"name": "diverse"},
}


@dataclass(frozen=True)
class Data:
    """Features (N, F) and verified values (N,) of all answers; `groups` prompts, `rows` their answers."""

    x: np.ndarray
    truth: np.ndarray
    groups: Sequence[Group]
    rows: Sequence[Sequence[int]]


def traits(text: str, instruction: Mapping[str, Any], ended: bool) -> list[float]:
    """Countable traits of an answer, some of them relative to the numbers and phrases of its instruction."""
    words, params = checkers.words(text), instruction["params"]
    number = next((value for value in params.values() if isinstance(value, int)), 0)
    phrases = [value for value in params.values() if isinstance(value, str)]
    sentences, bullets = checkers.sentences(text), len(checkers.BULLET.findall(text))
    return [
        ended,
        math.log1p(len(words)),
        len(set(words)) / max(len(words), 1),
        len(words) >= number,
        len(words) <= number,
        sentences == number,
        sentences <= number,
        bullets == number,
        bullets > 0,
        "," in text,
        any(letter.isdigit() for letter in text),
        text.islower(),
        text.isupper(),
        checkers.quoted(text),
        checkers.has_title(text),
        checkers.highlighted(text),
        checkers.has_postscript(text),
        checkers.has_placeholder(text),
        "******" in text,
        checkers.is_json(text),
        checkers.last_mark(text) == "?",
        bool(re.search(r"\n\s*\n", text)),
        sum(checkers.count(text, phrase) > 0 for phrase in phrases),
        sum(text.lower().count(phrase.lower()) >= max(number, 1) for phrase in phrases),
        any(checkers.begins(text, phrase) for phrase in phrases),
        any(checkers.ends(text, phrase) for phrase in phrases),
        sum(word in words for word in checkers.words(instruction["text"])) / max(len(words), 1),
    ]


def features(plain: np.ndarray, families: Sequence[str]) -> np.ndarray:
    """Standardised traits (N, F), alone and times the one-hot family of the instruction, (N, F + F x
    families): the model must learn which trait which family asks for.
    """
    plain = (plain - plain.mean(0)) / np.maximum(plain.std(0), 0.05)
    family = np.array([list(FAMILIES).index(name) for name in families])
    crossed = np.zeros((len(plain), len(FAMILIES), plain.shape[1]))
    crossed[np.arange(len(plain)), family] = plain
    return np.concatenate([plain, crossed.reshape(len(plain), -1)], axis=1)


def read(files: Sequence[Path]) -> Data:
    """The answers of prompts with an instruction and two or more verified answers."""
    groups = [
        group
        for file in files
        for group in read_groups(file)
        if "instruction" in group.prompt.meta and len(group.trajectories) > 1 and VERIFIED in group.columns
    ]
    if not groups:
        raise RatchetError(f"no verified answers in {', '.join(map(str, files))}")
    return collect(groups)


def collect(groups: Sequence[Group]) -> Data:
    """Features and verified values of groups."""
    answers = [(one, group.prompt.meta["instruction"]) for group in groups for one in group.trajectories]
    plain = np.array([traits(one.text, asked, one.stop == "end") for one, asked in answers], dtype=float)
    truth = np.array([value for group in groups for value in group.columns[VERIFIED]], dtype=float)
    ends = np.cumsum([len(group.trajectories) for group in groups])
    rows = [list(range(end - len(g.trajectories), end)) for end, g in zip(ends, groups, strict=True)]
    return Data(features(plain, [asked["family"] for _, asked in answers]), truth, groups, rows)


def run(
    data: Data, selector: str, *, seed: int, error: float, budget: int = BUDGET, ties_in_pool: bool = True
) -> dict[str, Any]:
    """Accuracy on the test prompts' unequal pairs after each batch of labels, and the share of ties among the
    labels. Without `ties_in_pool` only pairs that are no tie can be selected.
    """
    dice, rng = random.Random(f"labels/{seed}"), np.random.default_rng(seed)
    order = dice.sample(range(len(data.groups)), len(data.groups))
    cut = len(order) * 2 // 3
    pool = []
    for g in order[:cut]:
        able = [(i, j) for i, j in _pairs(data.rows[g]) if ties_in_pool or data.truth[i] != data.truth[j]]
        pool += dice.sample(able, min(PAIRS, len(able)))
    if len(pool) < budget:
        raise RatchetError(f"a budget of {budget} labels needs as many pairs, the pool has {len(pool)}")
    prompt_of = {row: g for g, rows in enumerate(data.rows) for row in rows}
    test = np.array(
        [(i, j) for g in order[cut:] for i, j in _pairs(data.rows[g]) if data.truth[i] != data.truth[j]]
    )
    test = np.where((data.truth[test[:, 0]] > data.truth[test[:, 1]])[:, None], test, test[:, ::-1])
    gaps = data.x[test[:, 0]] - data.x[test[:, 1]]
    wrong = {pair: rng.random() < error for pair in pool}  # the same label whichever selector asks
    labelled, start, ties = list[tuple[int, int]](), dice.sample(pool, RANDOM * BATCH), 0
    curve, scores = list[float](), np.zeros((MEMBERS, len(data.x)))
    for step in range(budget // BATCH):
        chosen = start[step * BATCH : (step + 1) * BATCH]
        if step >= RANDOM:
            chosen = _select(data, selector, pool, scores, prompt_of, Context(seed=seed, round=step))
        for i, j in chosen:
            pool.remove((i, j))
            if data.truth[i] == data.truth[j]:
                ties += 1
            else:
                better = (data.truth[i] > data.truth[j]) != wrong[i, j]
                labelled.append((i, j) if better else (j, i))
        pairs = np.array(labelled)
        differences = data.x[pairs[:, 0]] - data.x[pairs[:, 1]]
        margins = gaps @ bradley_terry(differences, PENALTY)
        curve.append(float(((margins > 0) + 0.5 * (margins == 0)).mean()))
        for member in range(MEMBERS):
            sample = rng.integers(0, len(pairs), len(pairs))
            scores[member] = data.x @ bradley_terry(differences[sample], PENALTY)
    return {"accuracy": curve, "ties": ties / budget}


def _pairs(rows: Sequence[int]) -> list[tuple[int, int]]:
    return [(i, j) for n, i in enumerate(rows) for j in rows[n + 1 :]]


def _select(
    data: Data,
    selector: str,
    pool: Sequence[tuple[int, int]],
    scores: np.ndarray,
    prompt_of: Mapping[int, int],
    ctx: Context,
) -> list[tuple[int, int]]:
    """The next batch, by the piece of that name, from the ensemble's scores."""
    mean, candidates = scores.mean(0), []
    for number, (i, j) in enumerate(pool):
        group, first = data.groups[prompt_of[i]], data.rows[prompt_of[i]][0]
        columns = {name: [scores[m, i], scores[m, j]] for m, name in enumerate(COLUMNS)}
        pair = group.take([i - first, j - first])
        margin = [float(mean[i] - mean[j])] * 2
        candidates.append(pair.extended({**columns, "margin": margin, "number": [number] * 2}))
    kept = build("select", {**SELECTORS[selector], "share": BATCH / len(pool)})(candidates, ctx)
    return [pool[group.columns["number"][0]] for group in kept][:BATCH]


def needed(curve: Sequence[float], goal: float) -> float:
    """Labels at which an accuracy curve first reaches `goal`, interpolated; infinite if it does not."""
    for step, value in enumerate(curve):
        if value >= goal:
            before = curve[step - 1] if step else value
            part = 1.0 if not step or value == before else (goal - before) / (value - before)
            return BATCH * (step + part)
    return math.inf


def summary(found: Mapping[str, Sequence[Mapping[str, Any]]], resamples: int = 2000) -> dict[str, Any]:
    """For each selector: final accuracy and mean accuracy over the budget, each minus that of `uniform`
    (paired by seed), the share of ties, and the labels that its mean curve needs for the final accuracy of
    the mean curve of `uniform`, with bootstrap intervals over seeds.
    """
    curves = {name: np.array([one["accuracy"] for one in runs]) for name, runs in found.items()}
    control, rng = curves["uniform"], np.random.default_rng(0)
    drawn = rng.integers(0, len(control), (resamples, len(control)))
    made = {}
    for name, own in curves.items():
        counts = [needed(own[d].mean(0), control[d].mean(0)[-1]) for d in drawn]
        low, high = np.quantile(counts, [0.025, 0.975], method="nearest")
        made[name] = {
            "curve": own.mean(0).tolist(),
            "final": mean_interval(own[:, -1]),
            "final_minus_uniform": mean_interval(own[:, -1] - control[:, -1]),
            "mean_minus_uniform": mean_interval((own - control).mean(1)),
            "ties": mean_interval([one["ties"] for one in found[name]]),
            "labels": {
                "mean": needed(own.mean(0), control.mean(0)[-1]),
                "low": float(low),
                "high": float(high),
            },
        }
    return made


def table(made: Mapping[str, Mapping[str, Any]], about: str) -> str:
    """The summary as Markdown."""

    def share(row: Interval, sign: str = "") -> str:
        return f"{100 * row['mean']:{sign}.1f} [{100 * row['low']:{sign}.1f}, {100 * row['high']:{sign}.1f}]"

    def count(value: float) -> str:
        return f"{value:.0f}" if math.isfinite(value) else f"> {BUDGET}"

    lines = [
        about,
        "",
        "| selector | accuracy at the end, % | − uniform, points | mean over the budget − uniform, points | "
        "labels for the end of uniform | ties, % of labels |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in made.items():
        labels = row["labels"]
        lines.append(
            f"| `{name}` | {share(row['final'])} | {share(row['final_minus_uniform'], '+')} | "
            f"{share(row['mean_minus_uniform'], '+')} | {count(labels['mean'])} [{count(labels['low'])}, "
            f"{count(labels['high'])}] | {share(row['ties'])} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.labels", description=__doc__)
    parser.add_argument(
        "--answers", type=Path, nargs="*", help="files of verified groups; else made by `instruct`"
    )
    parser.add_argument("--home", type=Path, default=Path("out"), help="whose store has the stage `compared`")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--error", type=float, default=0.15)
    parser.add_argument("--no-ties", dest="ties_in_pool", action="store_false", help="select no ties")
    parser.add_argument("--out", type=Path, default=Path("out/benchmarks/labels"))
    given = parser.parse_args()
    data, start = read(given.answers or answers_of(given.home)), time.time()
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in SELECTORS}
    for seed in range(given.seeds):
        for name in SELECTORS:
            made = run(data, name, seed=seed, error=given.error, ties_in_pool=given.ties_in_pool)
            found[name].append(made)
        print(f"seed {seed}: {time.time() - start:.0f} s", flush=True)
    made = summary(found)
    given.out.mkdir(parents=True, exist_ok=True)
    pool = "all pairs" if given.ties_in_pool else "the pairs that are no tie"
    about = f"{given.seeds} seeds, {BUDGET} labels of {pool}, annotator's error {given.error:.0%}."
    text = table(made, about)
    (given.out / "labels.json").write_text(json.dumps(made, indent=1))
    (given.out / "labels.md").write_text(text)
    print(text)


def answers_of(home: Path) -> list[Path]:
    """The verified answers of the SFT policy of `instruct`, from the store or made now."""
    from ratchet.tasks.pipeline import Pipeline

    pipeline = Pipeline.open("instruct", home=home)
    for name in list(pipeline.stages):
        pipeline.make(name)
        if name == "compared":
            break
    folder = pipeline.artifact("compared").path
    return [folder / "answers.parquet", folder / "answers_validation.parquet"]


if __name__ == "__main__":
    main()
