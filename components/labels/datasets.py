"""Between groups and labels: comparisons from the answers of a run, preference pairs from labels."""

from __future__ import annotations

import hashlib
import json
import logging
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import combinations
from pathlib import Path

from ratchet.components.data.groups import write_groups
from ratchet.components.data.parsing import parse
from ratchet.components.errors import DataError
from ratchet.components.labels.labels import WEIGHT, Item, Label
from ratchet.components.labels.settings import ordinary
from ratchet.components.labels.weights import label_weights
from ratchet.components.types import Group, Prompt, Trajectory

log = logging.getLogger("ratchet.labels")


def items_of(
    groups: Sequence[Group],
    count: int | None = None,
    *,
    seed: int = 0,
    round: int | None = None,
    policy: str = "",
) -> list[Item]:
    """`count` comparisons of two different answers to one prompt (None: one a prompt), in random order: first
    one of each prompt, then a second of each, and so on. Empty answers are left out, and of equal comparisons
    all but one. Groups of two, such as a selector made, give at most one comparison each. `policy`: digest of
    the weights for answers without one.
    """
    by_group = []
    for number, group in enumerate(groups):
        texts = list(dict.fromkeys(one.text for one in group.trajectories if one.text.strip()))
        pairs = list(combinations(texts, 2))
        random.Random(f"pairs/{seed}/{round}/{number}/{group.prompt.id}").shuffle(pairs)
        if pairs:
            by_group.append((group, pairs))
    random.Random(f"groups/{seed}/{round}").shuffle(by_group)
    found: dict[str, Item] = {}
    most = max((len(pairs) for _, pairs in by_group), default=0) if count is not None else 1
    for turn in range(most):
        for group, pairs in by_group:
            if turn < len(pairs) and (count is None or len(found) < count):
                weights = next((one.weights for one in group.trajectories if one.weights), policy)
                item = _item(group.prompt, pairs[turn], round=round, policy=weights)
                found.setdefault(item.id, item)
    return list(found.values())


def repeated(items: Sequence[Item], share: float, seed: int = 0) -> list[Item]:
    """Repetitions of a share of the items, rounded, to measure whether annotators agree with themselves."""
    chosen = random.Random(f"repeat/{seed}").sample(list(items), round(share * len(items)))
    return [
        Item(
            _opaque("repeat", item.id), item.prompt, item.answers, None, item.id, item.round, item.policy,
            item.prompt_id, item.source, item.answer,
        )
        for item in chosen
    ]  # fmt: skip


def planted_items(path: Path, limit: int | None = None) -> list[Item]:
    """Planted comparisons from a file of preference pairs in any layout that a recipe reads (docs/data.md);
    the chosen answer is the known better one. A pair that the file has twice is one comparison; one whose
    sides are several turns after the prompt is left out, with a warning, since a comparison shows one message
    a side. `DataError` if nothing is left, or if the file has a pair in both orders.
    """
    records = [record for record in parse(path).kept if record.rejected]
    single = [one for one in records if len(one.messages) == len(one.rejected) == one.opening + 1]
    if not single:
        raise DataError(
            f"{path} holds no preference pairs of one message a side; planted comparisons need a chosen and "
            "a rejected answer"
        )
    if len(single) < len(records):
        log.warning(
            "%s: %d of %d pairs are left out: their sides are several turns after the prompt",
            path, len(records) - len(single), len(records),
        )  # fmt: skip
    found: dict[str, Item] = {}
    for record in single[:limit]:
        prompt = record.prompt(record.id, (*record.head, *record.messages[: record.opening]), {})
        sides = record.messages[-1]["content"], record.rejected[-1]["content"]
        item = _item(prompt, sides, planted=0)
        if found.setdefault(item.id, item).answers != item.answers:
            raise DataError(
                f"{path} says of the same two answers both that one is better and that the other is: "
                f"{sides[0][:80]!r} and {sides[1][:80]!r}; leave one of the rows out"
            )
    return list(found.values())


def _item(prompt: Prompt, answers: Sequence[str], **more: object) -> Item:
    """An item whose id tells an annotator nothing: a digest. `DataError` for a prompt with images."""
    if prompt.inputs:
        raise DataError(f"prompt {prompt.id!r} shows images, which the labelling page cannot show yet")
    name = _opaque(json.dumps([list(prompt.messages), sorted(answers), str(more)], sort_keys=True))
    return Item(
        name, list(prompt.messages), list(answers), prompt_id=prompt.id, source=prompt.source,
        answer=prompt.answer, **more,  # type: ignore[arg-type]
    )  # fmt: skip


def _opaque(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def pairs_of(items: Iterable[Item], labels: Iterable[Label]) -> tuple[list[Group], Counter[str]]:
    """Preference pairs, one group a judged pair of answers (the chosen answer against each other one), and
    counts of what was left out. Columns: `annotator`, `seconds`, `reason` and `label_weight` (how far the
    label is to be trusted, with mean 1: `weights.label_weights`), with one value for both answers;
    the prompt's `meta` has annotator, item and weight too, so that they survive curation.
    """
    by_id, counts, groups = {item.id: item for item in items}, Counter[str](), []
    labels = list(labels)
    known = [label for label in labels if label.item in by_id]
    weights = dict(zip(map(id, known), label_weights(list(by_id.values()), known), strict=True))
    for label in labels:
        item = by_id.get(label.item)
        if item is None or not ordinary(item):
            counts["labels of planted, repeated or removed items"] += 1
        elif label.choice is None:
            counts[f"labels with the verdict {label.verdict}"] += 1
        else:
            counts["labels"] += 1
            groups += [
                _pair(item, label, other, weights[id(label)])
                for other in range(len(item.answers))
                if other != label.choice
            ]
    return groups, counts


def _pair(item: Item, label: Label, other: int, weight: float) -> Group:
    assert label.choice is not None
    prompt = Prompt(
        f"{item.prompt_id or item.id}-{label.annotator}-{item.id}-{other}",
        tuple(item.prompt),
        item.answer,
        item.source,
        {
            "annotator": label.annotator,
            "item": item.id,
            WEIGHT: weight,
            **({} if item.round is None else {"round": item.round}),
        },
    )
    sides = tuple(
        Trajectory(({"role": "assistant", "content": item.answers[i]},), actor="policy", weights=item.policy)
        for i in (label.choice, other)
    )
    return Group(
        prompt,
        sides,
        {
            "annotator": [label.annotator] * 2,
            "seconds": [float(label.seconds)] * 2,
            "reason": [label.reason] * 2,
            WEIGHT: [weight] * 2,
        },
    )


def export(items: Iterable[Item], labels: Iterable[Label], path: Path) -> Counter[str]:
    """Write the preference pairs to a Parquet file in the groups layout; returns counts. `DataError` if no
    label chose an answer, or the file's suffix is another.
    """
    if path.suffix != ".parquet":
        raise DataError(f"{path}: expected a file name that ends with .parquet")
    groups, counts = pairs_of(items, labels)
    if not groups:
        raise DataError(f"nothing to export: no label chose an answer ({dict(counts)})")
    write_groups(path, groups)
    counts["pairs"] = len(groups)
    return counts
