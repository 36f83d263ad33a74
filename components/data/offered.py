"""Split feasibility: which splits the records can fill (pairs, labels, answers, enough distinct prompts)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from ratchet.components.data.published import share_of
from ratchet.components.data.records import Conversation, Rejected
from ratchet.components.data.splits import split, split_key
from ratchet.components.errors import DataError
from ratchet.components.recipes.splits import PAIRS, SHARES, SINGLE, kind_of

NEEDS = {
    "sft": "answers of the assistant",
    **dict.fromkeys(PAIRS, "preference pairs"),
    **dict.fromkeys(SINGLE, "answers with a label"),
}
"""Content that a split needs besides prompts."""


def default_shares(
    records: Sequence[Conversation], read: Collection[str], parsed: Mapping[str, int]
) -> dict[str, float]:
    """Default shares of the splits that the records can fill, restricted to those in `read` if given.
    `DataError` if a read split cannot be filled. `read`: splits that the recipe uses; `parsed`: rows by the
    layout that they were read as.
    """
    answered = any(m["role"] == "assistant" for record in records for m in record.messages)
    paired = any(
        record.rejected or ((record.topic or record.opening) and record.rating is not None)
        for record in records
    )
    kinds = (
        {"prompts", "evaluate"} | ({"sft"} if answered else set()) | ({"reward", "gold"} if paired else set())
    )
    if missing := next((name for name in SHARES if name in read and kind_of(name) not in kinds), None):
        raise DataError(
            f"the recipe reads the split {missing!r}, which is made of {NEEDS[kind_of(missing)]}, but "
            f"none of the {len(records)} records has any; "
            f"{'; '.join(f'{what}: {number}' for what, number in parsed.items() if number)}. Check the "
            "columns, `data.parser` and `data.columns`"
        )
    return {
        name: share for name, share in SHARES.items() if kind_of(name) in kinds and (name in read or not read)
    }


def split_records(
    records: Sequence[Conversation],
    shares: Mapping[Any, Any],
    homes: Mapping[str, str],
    steps: Sequence[Mapping[str, Any]],
    seed: int,
) -> tuple[dict[str, list[Conversation]], list[Rejected]]:
    """Divide the records of each published split among the splits made from it; returns them and the unused
    records as rejected. `homes`: name of a recipe's split -> the published split that it is made from.
    """
    parts: dict[str, list[Conversation]] = {}
    for home in dict.fromkeys(homes.values()):
        mine = {name: share_of(share) for name, share in shares.items() if homes[name] == home}
        here = [record for record in records if record.published == home]
        if (prompts := len({split_key(record) for record in here})) < len(mine):
            gone = "; ".join(
                f"{step['step']}: {reason} {number}"
                for step in steps
                for reason, number in step["dropped"].items()
            )
            raise DataError(
                f"{prompts} different prompts or topics in the {len(here)} records "
                f"{f'of the published split {home!r} ' if home else ''}that are left "
                f"of {steps[0]['in']}{f' ({gone})' if gone else ''}: too few for {len(mine)} splits "
                f"({', '.join(mine)}), which each need "
                "at least one. Add data, or name fewer splits in data.splits"
            )
        parts |= split(here, mine, seed)
    unread = [
        Rejected(
            record.id, f"of the published split {record.published!r}, from which no split is made", copy=True
        )
        for record in records
        if record.published not in homes.values()
    ]
    return {name: parts[name] for name in shares}, unread


def refuse_other_preferences(shares: Iterable[str], records: Sequence[Conversation]) -> None:
    """`DataError` if a split needs pairs but the data has labelled single answers, or the reverse."""
    labelled, paired = (
        sum(record.label is not None for record in records),
        sum(bool(record.rejected) for record in records),
    )
    for name in shares:
        if kind_of(name) in PAIRS and labelled and not paired:
            raise DataError(
                f"data.splits.{name}: expected preference pairs (chosen and rejected), got {labelled} "
                "single answers with a `label`; "
                "train on these with an objective of single answers and a split `labelled`, or provide pairs"
            )
        if kind_of(name) in SINGLE and not labelled:
            raise DataError(
                f"data.splits.{name}: expected answers with a `label`, true or false, got "
                f"{f'{paired} preference pairs' if paired else 'none'}; "
                + (
                    "train on these with a pairwise objective and a split `reward`, or "
                    "provide rows with prompt, completion and label"
                    if paired
                    else "provide rows with prompt, completion and label"
                )
            )
