"""Generated data for `generate:name?key=value`: reasoning problems, and a small language for training from
scratch.

All `reasoning-gym` data sets by name and options (`generate:chain_sum?size=500&seed=1&max_terms=3`), as JSONL
rows {id, prompt, answer, meta}; `meta` is the full entry, which the package's verifier needs. In addition:

    tiny_corpus   {id, messages}                 short dialogues of a closed grammar, with sums
    tiny_pairs    {id, prompt, chosen, rejected}  the same questions; the rejected answer is wrong or rude
    tiny_labels   {id, prompt, completion, label} one answer each; label false: it is wrong or rude
    tiny_openers  {id, prompt}                   first messages on which a small-talk model's answers vary
    tiny_sources  {id, prompt, completion, label, answer} sums of an expert (label true) and of a worse source
"""

from __future__ import annotations

import importlib.util
import inspect
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from ratchet.components.errors import SourceError, nearest

COLOURS = {
    "sky": "blue",
    "grass": "green",
    "snow": "white",
    "coal": "black",
    "a lemon": "yellow",
    "a rose": "red",
}
SOUNDS = {
    "a dog": "barks",
    "a cat": "meows",
    "a cow": "moos",
    "a duck": "quacks",
    "a lion": "roars",
    "a bee": "buzzes",
}
PLACES = {
    "fish": "in water",
    "birds": "in trees",
    "bears": "in woods",
    "camels": "in deserts",
    "kings": "in castles",
}
NAMES = ("Ann", "Bob", "Cleo", "Dan", "Eve", "Finn")
OPENERS = (
    "what about {}?",
    "do you know {}?",
    "i am tired of {}",
    "is there {} today?",
    "we talked about {}",
    "{} again?",
    "my friend has {}",
    "say something of {}",
    "who likes {}?",
    "it is time for {}",
)
SUBJECTS = (
    *["music", "films", "books", "football", "cooking", "travel", "games", "dogs", "cats", "rain", "coffee"],
    "the sea",
)
SUBJECTS += (
    *["snow", "tea", "work", "school", "trains", "birds", "art", "bread", "wine", "money", "winter"],
    "the city",
)
RUDE = ("I do not know.", "Go away.", "Who cares?", "No.")


def generate(what: str, folder: Path) -> Path:
    """Write the data set `name?key=value&...` to `folder/name.jsonl`, deterministically. `SourceError` for an
    unknown name or option.
    """
    name, _, query = what.partition("?")
    options = {key: _value(text) for key, text in parse_qsl(query, keep_blank_values=True)}
    rows = _TINY[name] if name in _TINY else _reasoning(name)
    try:
        lines = [json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n" for row in rows(**options)]
    except (TypeError, ValueError, AssertionError) as error:
        known = _option_names(name)
        wrong = [key for key in options if key not in known]
        reason = f"no option {wrong[0]!r}{nearest(wrong[0], known)}" if wrong else str(error).splitlines()[0]
        raise SourceError(f"generate:{what}: {reason}") from error
    if not lines:
        raise SourceError(f"generate:{what}: no rows generated; set size to a positive number")
    path = folder / f"{name}.jsonl"
    path.write_text("".join(lines), encoding="utf-8")
    return path


def check_name(what: str) -> None:
    """`SourceError` if `name?key=value&...` names no data set."""
    name, package = what.partition("?")[0], importlib.util.find_spec("reasoning_gym")
    files = (
        Path(package.origin).parent.rglob(f"{name}.py")
        if package and package.origin and name.isidentifier()
        else ()
    )
    if name not in _TINY and not any(files):  # importing the package takes a second
        _reasoning(name)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _reasoning(name: str) -> Callable[..., Iterator[dict[str, Any]]]:
    from reasoning_gym.factory import DATASETS, create_dataset

    if name not in DATASETS:
        raise SourceError(f"generate:{name}: no such data set{nearest(name, [*DATASETS, *_TINY])}")

    def rows(size: int = 500, seed: int = 0, **options: Any) -> Iterator[dict[str, Any]]:
        for number, entry in enumerate(create_dataset(name, size=size, seed=seed, **options)):
            entry = json.loads(json.dumps(entry, default=str))
            yield {
                "id": f"{name}-{seed}-{number}",
                "prompt": entry["question"],
                "answer": entry["answer"],
                "meta": entry,
            }

    return rows


def _option_names(name: str) -> list[str]:
    if name in _TINY:
        return list(inspect.signature(_TINY[name]).parameters)
    from reasoning_gym.factory import DATASETS

    return list(inspect.signature(DATASETS[name][1]).parameters)


def _question(rng: random.Random) -> tuple[str, str, str, str]:
    """Topic, question, right answer and wrong answer from the grammar."""
    kind = rng.choice(("colours", "sounds", "places", "sums"))
    if kind == "sums":
        a, b = rng.randrange(10), rng.randrange(10)
        return kind, f"What is {a} + {b}?", f"{a + b}.", f"{a + b + rng.choice((-2, -1, 1, 2))}."
    table, ask, say = {
        "colours": (COLOURS, "What colour is {}?", "{} is {}."),
        "sounds": (SOUNDS, "What does {} do?", "{} {}."),
        "places": (PLACES, "Where do {} live?", "{} live {}."),
    }[kind]
    thing = rng.choice(sorted(table))
    wrong = rng.choice(sorted(set(table.values()) - {table[thing]}))
    subject = thing[0].upper() + thing[1:]
    return kind, ask.format(thing), say.format(subject, table[thing]), say.format(subject, wrong)


def _tiny_corpus(size: int = 2000, seed: int = 0, turns: int = 2) -> Iterator[dict[str, Any]]:
    """Greetings followed by up to `turns` questions; a third of the dialogues start with a system message."""
    rng = random.Random(f"tiny_corpus {seed}")
    for number in range(size):
        messages = []
        name = rng.choice(NAMES)

        if rng.random() < 0.3:
            messages += [
                {"role": "user", "content": f"Hello, I am {name}."},
                {"role": "assistant", "content": f"Hello {name}, nice to meet you."},
            ]
        for _ in range(rng.randint(1, turns)):
            _, question, answer, _ = _question(rng)
            messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
        if rng.random() < 0.33:
            messages.insert(0, {"role": "system", "content": "Answer in one short sentence."})
        yield {"id": f"tiny-{seed}-{number}", "messages": messages}


def _tiny_pairs(size: int = 500, seed: int = 0) -> Iterator[dict[str, Any]]:
    """A right answer against a wrong or a rude one."""
    rng = random.Random(f"tiny_pairs {seed}")
    for number in range(size):
        _, question, answer, wrong = _question(rng)
        yield {
            "id": f"tiny-pair-{seed}-{number}",
            "prompt": [{"role": "user", "content": question}],
            "chosen": [{"role": "assistant", "content": answer}],
            "rejected": [{"role": "assistant", "content": wrong if rng.random() < 0.5 else rng.choice(RUDE)}],
        }


def _tiny_labels(size: int = 500, seed: int = 0) -> Iterator[dict[str, Any]]:
    """One answer per pair, alternately the right and the wrong one."""
    for number, pair in enumerate(_tiny_pairs(size, seed)):
        good = number % 2 == 0
        yield {
            "id": f"tiny-label-{seed}-{number}",
            "prompt": pair["prompt"],
            "completion": pair["chosen" if good else "rejected"],
            "label": good,
        }


def _tiny_openers(seed: int = 0) -> Iterator[dict[str, Any]]:
    """Every wording with every subject, in an order that `seed` shuffles."""
    texts = [wording.format(subject) for wording in OPENERS for subject in SUBJECTS]
    random.Random(f"tiny_openers {seed}").shuffle(texts)
    for number, text in enumerate(texts):
        yield {"id": f"tiny-opener-{seed}-{number}", "prompt": [{"role": "user", "content": text}]}


def _tiny_sources(
    size: int = 1000, seed: int = 0, expert: float = 0.1, wrong: float = 0.4
) -> Iterator[dict[str, Any]]:
    """A share `expert` of sums with the right answer; of the others a share `wrong` is 1 or 2 off. One row at
    most for each of 24 speakers and 100 sums.
    """
    rng = random.Random(f"tiny_sources {seed}")
    speakers = [f"{greeting}, I am {name}." for greeting in ("Hello", "Hi", "Hey", "Well") for name in NAMES]
    asked = [(speaker, a, b) for speaker in speakers for a in range(10) for b in range(10)]
    for number, (speaker, a, b) in enumerate(rng.sample(asked, min(size, len(asked)))):
        best = rng.random() < expert
        off = 0 if best or rng.random() >= wrong else rng.choice((-2, -1, 1, 2))
        yield {
            "id": f"tiny-source-{seed}-{number}",
            "prompt": [{"role": "user", "content": f"{speaker} What is {a} + {b}?"}],
            "completion": [{"role": "assistant", "content": f"{a + b + off}."}],
            "label": best,
            "answer": str(a + b),
        }


_TINY: dict[str, Callable[..., Iterator[dict[str, Any]]]] = {
    "tiny_corpus": _tiny_corpus,
    "tiny_pairs": _tiny_pairs,
    "tiny_labels": _tiny_labels,
    "tiny_openers": _tiny_openers,
    "tiny_sources": _tiny_sources,
}
