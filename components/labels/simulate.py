"""Simulated annotators of known error, to test measures of label quality and the labelling pipeline."""

from __future__ import annotations

import datetime
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ratchet.components.labels.labels import Item, Label
from ratchet.components.labels.queue import Queue

BEGIN = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
WORDS = ("the", "answer", "is", "long", "list", "of", "words", "that", "reader", "compares", "with", "other")


@dataclass(frozen=True)
class Annotator:
    """An annotator who chooses a worse answer with probability `error` (1 - 1/K is a click at random).

    `ties`: probability of the verdict "tie". `first`, `longest`: probability of choosing the answer shown
    first, or the longest one, without reading. `seconds`: median time a label (log-normal).
    """

    name: str
    error: float = 0.15
    ties: float = 0.0
    first: float = 0.0
    longest: float = 0.0
    seconds: float = 20.0

    def label(
        self, item: Item, better: int | None, order: Sequence[int], rng: random.Random, time: str = ""
    ) -> Label:
        """The label of an item whose better answer is `better`. None: they are equally good, which is a tie,
        or any choice with probability `error`.
        """
        numbers = range(len(item.answers))
        tie, drawn = rng.random() < self.ties, rng.random()
        if drawn < self.first:
            choice = order[0]
        elif drawn < self.first + self.longest:
            choice = max(numbers, key=lambda i: len(item.answers[i]))
        elif better is None:
            choice, tie = rng.choice(list(numbers)), tie or rng.random() >= self.error
        else:
            wrong = rng.random() < self.error
            choice = rng.choice([i for i in numbers if i != better]) if wrong else better
        return Label(
            item=item.id,
            annotator=self.name,
            choice=None if tie else choice,
            verdict="tie" if tie else "choice",
            order=list(order),
            seconds=round(self.seconds * rng.lognormvariate(0, 0.5), 2),
            time=time,
        )


@dataclass(frozen=True)
class Session:
    """Simulated items and labels with the better answer of each item by its id."""

    items: list[Item]
    labels: list[Label]
    better: dict[str, int]


def take_turns(
    queue: Queue, annotators: Sequence[Annotator], better: Mapping[str, int], *, each: int = 40, seed: int = 0
) -> list[Label]:
    """Let annotators judge a queue in turn until each has `each` labels or nothing is open to any of them;
    returns the queue's labels. `better`: index of the better answer by the id of an item.
    """
    rng = random.Random(f"turns/{seed}")
    for _ in range(each):
        for one in annotators:
            if (item := queue.next(one.name)) is not None:
                order = queue.order(item.id, one.name)
                queue.submit(one.label(item, better[item.id], order, rng))
    return queue.labels()


def simulate(
    annotators: Sequence[Annotator],
    *,
    each: int = 40,
    planted: float = 0.15,
    repeats: float = 0.1,
    overlap: float = 0.5,
    judges: int | None = None,
    answers: int = 2,
    seed: int = 0,
) -> Session:
    """Labels of `each` items by every annotator, in random order: a share `planted` with a known answer,
    common to all annotators, a share `overlap` of items that `judges` annotators judge (None: all), a share
    `repeats` of an annotator's earlier items shown again, and items of their own for the rest.
    """
    rng = random.Random(f"labels/{seed}")
    items, better, labels = dict[str, Item](), dict[str, int](), list[Label]()

    def new(name: str, **options: object) -> Item:
        texts = [" ".join(rng.choices(WORDS, k=rng.randint(4, 40))) for _ in range(answers)]
        better[name] = rng.randrange(answers)
        known = better[name] if options.pop("known", False) else None
        items[name] = Item(name, [{"role": "user", "content": f"question {name}"}], texts, planted=known)
        return items[name]

    again = round(repeats * each)
    tests = [new(f"planted-{i}", known=True) for i in range(round(planted * each))]
    count, people = min(round(overlap * each), each - len(tests) - again), len(annotators)
    judges = min(judges or people, people)
    pool = [new(f"common-{i}") for i in range(math.ceil(count * people / judges))]
    for number, person in enumerate(annotators):
        common = [one for i, one in enumerate(pool) if (number - i) % people < judges]
        own = [new(f"{person.name}-{i}") for i in range(each - len(tests) - len(common) - again)]
        shown = [*tests, *common, *own]
        rng.shuffle(shown)
        for first in rng.sample([one for one in shown if one.planted is None] or shown, again):
            name = f"{first.id}-again-{person.name}"
            items[name] = Item(name, first.prompt, first.answers, repeat_of=first.id)
            better[name] = better[first.id]
            shown.insert(rng.randint(shown.index(first) + 1, len(shown)), items[name])
        moment = BEGIN
        for item in shown:
            order = rng.sample(range(answers), answers)
            made = person.label(item, better[item.id], order, rng, moment.isoformat())
            labels.append(made)
            moment += datetime.timedelta(seconds=made.seconds)
    return Session(list(items.values()), labels, better)
