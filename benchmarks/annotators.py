"""`python -m benchmarks.annotators`: how often an annotator who clicks at random is found by the report on
label quality, and how often a good one is called random, in simulated sessions on real queues.

A session: the stage `ask` fills a queue as for `rewards.people`, with `--labels` labels a round; good
annotators of known error rates and one who clicks at random take turns at it until each has `--each` labels.
Planted and repeated pairs are added to the queue as `ratchet label` adds them.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from ratchet.components.data.groups import write_groups
from ratchet.components.evaluation.bootstrap import Interval, wilson
from ratchet.components.labels.datasets import repeated
from ratchet.components.labels.quality import Labels, annotator_measures, chance_test
from ratchet.components.labels.queue import Queue
from ratchet.components.labels.settings import make_queue
from ratchet.components.labels.simulate import Annotator, take_turns
from ratchet.components.stages.ask import open_queue
from ratchet.components.stages.job import Job
from ratchet.components.storage.store import Workspace
from ratchet.components.types import Artifact, Group, Prompt, Trajectory

CLICKER = Annotator("clicker", error=0.5)


@dataclass(frozen=True)
class Setting:
    """`errors`: error rates of the good annotators; `labels`, `overlap`, `common`: of `rewards.people`;
    `each`: labels an annotator; `planted`: number of planted pairs; `repeats`: share of repeated pairs.
    """

    errors: Sequence[float] = (0.15,) * 4
    labels: int = 200
    overlap: float = 0.2
    common: int | None = None
    each: int = 40
    planted: int = 0
    repeats: float = 0.0


@dataclass(frozen=True)
class Session:
    """`found`: verdict on the clicker, `alarms`: on each good annotator; `pairs`: different pairs judged."""

    found: str
    alarms: Sequence[str]
    pairs: int


def session(seed: int, setting: Setting) -> Session:
    """One simulated session."""
    with tempfile.TemporaryDirectory() as home:
        work = Workspace(Path(home) / "work")
        for folder in (work.product, work.progress):
            folder.mkdir(parents=True)
        write_groups(Path(home) / "groups.parquet", answers(setting.labels))
        inputs = {name: Artifact("groups", Path(home), name) for name in ("groups", "policy")}
        people = {
            "labels": setting.labels, "overlap": setting.overlap, "common": setting.common,
            "deadline_hours": None, "repeats": 0.0, "guidelines": "", "simulated": (),
        }  # fmt: skip
        waiting = open_queue(Job({"people": people, "round": 1, "seed": seed}, inputs, work))
        planted = [replace(one, planted=0, round=None, id=f"planted-{one.id}") for one in waiting.items]
        extra = [*planted[: setting.planted], *repeated(waiting.items, setting.repeats, seed)]
        make_queue(waiting.folder, extra)
        items = [*waiting.items, *extra]
        rng = random.Random(f"better/{seed}")
        better = {item.id: 0 if item.planted == 0 else rng.randrange(2) for item in items}
        better.update({item.id: better[item.repeat_of] for item in items if item.repeat_of})
        good = [Annotator(f"good-{i}", error) for i, error in enumerate(setting.errors)]
        with Queue(waiting.folder) as queue:
            labels = take_turns(queue, [*good, CLICKER], better, each=setting.each, seed=seed)
        joined = Labels(items, labels)
        verdicts = [verdict(joined, one.name) for one in good]
        return Session(verdict(joined, CLICKER.name), verdicts, len({joined.unit(one) for one in labels}))


def answers(prompts: int) -> list[Group]:
    """Two answers to each of a number of prompts."""
    return [
        Group(
            Prompt(f"p{i}", ({"role": "user", "content": f"question {i}"},)),
            tuple(Trajectory(({"role": "assistant", "content": text},)) for text in ("one", "two")),
        )
        for i in range(prompts)
    ]


def verdict(joined: Labels, name: str) -> str:
    """What the report says of an annotator."""
    found = str(chance_test(joined, name)["verdict"])
    return annotator_measures(joined, name)["chance"]["verdict"] if found == "random" else found


def percent(share: Interval) -> str:
    return f"{100 * share['mean']:.1f} % [{100 * share['low']:.1f}, {100 * share['high']:.1f}]"


def main() -> None:
    """Print one row."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.annotators", description=__doc__)
    parser.add_argument("--errors", type=float, nargs="+", default=[0.15] * 4, help="of good annotators")
    parser.add_argument("--labels", type=int, default=200, help="labels that a round asks for")
    parser.add_argument("--overlap", type=float, default=0.2)
    parser.add_argument("--common", type=int, help="pairs that everybody judges first; default: of the piece")
    parser.add_argument("--each", type=int, default=40, help="labels of each annotator")
    parser.add_argument("--planted", type=int, default=0, help="planted pairs, one shown in eight")
    parser.add_argument("--repeats", type=float, default=0.0, help="share of repeated pairs")
    parser.add_argument("--sessions", type=int, default=400)
    parser.add_argument("--workers", type=int, default=2)
    options = vars(parser.parse_args())
    sessions, workers = options.pop("sessions"), options.pop("workers")
    setting = Setting(**options)
    with ProcessPoolExecutor(workers) as pool:
        made = list(pool.map(partial(session, setting=setting), range(sessions)))
    print(setting)
    verdicts = [one for each in made for one in each.alarms]
    print(f"clicker called random: {percent(wilson(sum(one.found == 'random' for one in made), sessions))}")
    for name in ("random", "poor"):
        share = wilson(sum(one == name for one in verdicts), len(verdicts))
        print(f"good annotators called {name}: {percent(share)} of {len(verdicts)}")
    print(f"different pairs judged: {sum(one.pairs for one in made) / sessions:.0f}")


if __name__ == "__main__":
    main()
