"""Settings of a labelling queue, and making one."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ratchet.components.errors import DataError
from ratchet.components.labels.labels import ITEMS, Item, Label, append_durably, read_items, repair
from ratchet.components.storage.store import write_atomic

SETTINGS = "queue.json"
COMMON = 32
"""Items that all annotators judge: with one planted item in eight, 93 % of random clickers are found."""


@dataclass(frozen=True)
class Settings:
    """`overlap`: share of the items of a round that two annotators judge. `common`: number of items of the
    newest round that every annotator judges first, so that each is compared with all others.
    `lease_minutes`: how long an item stays reserved for the annotator who sees it. `extra_every`: after so
    many ordinary items an annotator judges a planted or repeated one, if there is one. `aspects`: questions
    besides the overall choice. `seed`: of the order of answers. `title` and `guidelines` are shown.
    """

    overlap: float = 0.0
    common: int = 0
    lease_minutes: float = 10.0
    extra_every: int = 8
    aspects: Sequence[str] = ()
    seed: int = 0
    title: str = ""
    guidelines: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.overlap <= 1:
            raise DataError(f"queue: overlap is {self.overlap}, expected a share from 0 to 1")
        if self.common < 0:
            raise DataError(f"queue: common is {self.common}, expected 0 or more items")
        if self.lease_minutes <= 0 or self.extra_every < 1:
            raise DataError("queue: expected lease_minutes above 0 and extra_every of at least 1")


def make_queue(folder: Path, items: Iterable[Item], settings: Settings | None = None) -> Path:
    """Write a new queue, or add the items that an existing one does not have (its settings stay).
    `DataError`, before anything is written, if an id is that of another comparison.
    """
    repair(folder / ITEMS)
    known = {item.id: item for item in read_items(folder)} if (folder / ITEMS).exists() else {}
    new = []
    for item in items:
        if item.id not in known:
            known[item.id] = item
            new.append(item)
        elif shown(item) != shown(known[item.id]):
            raise DataError(
                f"{folder}: two items with other prompts or answers have the id {item.id!r}; give each "
                "comparison an id of its own, or use another queue"
            )
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / SETTINGS).exists():
        text = json.dumps(asdict(settings or Settings()), indent=1, ensure_ascii=False)
        write_atomic(folder / SETTINGS, text + "\n")
    append_durably(folder / ITEMS, new)
    return folder


def shown(item: Item) -> tuple[list[tuple[str, str]], list[str]]:
    """The prompt's messages and the answers of a comparison."""
    return [(one["role"], one["content"]) for one in item.prompt], list(item.answers)


def read_settings(folder: Path) -> Settings:
    """The settings of a queue folder; the defaults if it has none. `DataError` for an invalid file."""
    try:
        return Settings(**json.loads((folder / SETTINGS).read_text()))
    except FileNotFoundError:
        return Settings()
    except (ValueError, TypeError) as error:
        raise DataError(f"{folder / SETTINGS}: {error}") from error


def doubled(items: Sequence[Item], settings: Settings) -> set[str]:
    """Ids of the items that two annotators judge: the share `overlap` of each round's ordinary items,
    rounded, chosen by the seed and their ids.
    """
    rounds: dict[int | None, list[str]] = {}
    for item in items:
        if ordinary(item):
            rounds.setdefault(item.round, []).append(item.id)
    found: set[str] = set()
    for ids in rounds.values():
        order = sorted(ids, key=lambda name: random.Random(f"overlap/{settings.seed}/{name}").random())
        found.update(order[: round(settings.overlap * len(ids))])
    return found


def common(items: Sequence[Item], settings: Settings) -> set[str]:
    """Ids of the items that every annotator judges first: the first ordinary ones of the newest round."""
    plain = [item for item in items if ordinary(item)]
    newest = plain[-1].round if plain else None
    return {item.id for item in [one for one in plain if one.round == newest][: settings.common]}


def common_default(items: int, overlap: float) -> int:
    """How many of a number of items every annotator judges first, unless it is said: `COMMON`, but at most a
    quarter; none in a queue without overlap.
    """
    return min(COMMON, items // 4) if overlap else 0


def needed(items: Sequence[Item], settings: Settings) -> dict[str, int]:
    """Labels that a queue asks for on each ordinary item, by its id: 2 for the share `overlap`, else 1."""
    twice = doubled(items, settings)
    return {item.id: 2 if item.id in twice else 1 for item in items if ordinary(item)}


def given(labels: Iterable[Label], needed: Mapping[str, int]) -> int:
    """How many of the needed labels there are. Not counted: skips, planted and repeated items, and labels
    beyond those needed of an item, which further annotators give on the common items.
    """
    judges = Counter(label.item for label in labels if label.verdict != "skip")
    return sum(min(judges[item], count) for item, count in needed.items())


def ordinary(item: Item) -> bool:
    """Whether an item is neither planted nor a repetition."""
    return item.planted is None and item.repeat_of is None
