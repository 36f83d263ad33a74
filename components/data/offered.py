"""What the splits of a recipe can be made of, told from the records alone: pairs, labels, answers, enough different prompts."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ratchet.components.data.published import share_of
from ratchet.components.data.records import Conversation, Dropped
from ratchet.components.data.splits import split, split_key
from ratchet.components.errors import DataError
from ratchet.components.recipes.sections import PAIRS, SHARES, SINGLE, kind_of

NEEDS = {"sft": "answers of the assistant", **dict.fromkeys(PAIRS, "preference pairs"), **dict.fromkeys(SINGLE, "answers with a label")}
"""What a split is made of, where that is not prompts alone."""


def offered(records: Sequence[Conversation], read: Collection[str], parsed: Mapping[str, int]) -> dict[str, float]:
    """The default shares of the splits that such records can fill, and that are read where it is known which are."""
    answered = any(m["role"] == "assistant" for record in records for m in record.messages)
    paired = any(record.rejected or ((record.topic or record.opening) and record.rating is not None) for record in records)
    kinds = {"prompts", "evaluate"} | ({"sft"} if answered else set()) | ({"reward", "gold"} if paired else set())
    if missing := next((name for name in SHARES if name in read and kind_of(name) not in kinds), None):
        raise DataError(f"the recipe reads the split {missing!r}, which is made of {NEEDS[kind_of(missing)]}, and none of the {len(records)} records has any; "
                        f"{'; '.join(f'{what}: {number}' for what, number in parsed.items() if number)}. Look at the columns, `data.parser` and `data.columns`")
    return {name: share for name, share in SHARES.items() if kind_of(name) in kinds and (name in read or not read)}


def divided(records: Sequence[Conversation], shares: Mapping[str, Any], homes: Mapping[str, str], steps: Sequence[Mapping[str, Any]],
           seed: int) -> tuple[dict[str, list[Conversation]], list[Dropped]]:
    """The records of each published split divided among the splits that are made from it, and those of one that none is made from."""
    parts: dict[str, list[Conversation]] = {}
    for home in dict.fromkeys(homes.values()):
        mine = {name: share_of(share) for name, share in shares.items() if homes[name] == home}
        here = [record for record in records if record.published == home]
        if (prompts := len({split_key(record) for record in here})) < len(mine):
            gone = "; ".join(f"{step['step']}: {reason} {number}" for step in steps for reason, number in step["dropped"].items())
            raise DataError(f"{prompts} different prompts or topics in the {len(here)} records {f'of the published split {home!r} ' if home else ''}that are left "
                            f"of {steps[0]['in']}{f' ({gone})' if gone else ''}: too few for {len(mine)} splits ({', '.join(mine)}), each of which needs "
                            "one of its own. Bring more data, or name fewer splits in data.splits")
        parts |= split(here, mine, seed)
    unread = [Dropped(record.id, f"of the published split {record.published!r}, from which no split is made", copy=True)
              for record in records if record.published not in homes.values()]
    return {name: parts[name] for name in shares}, unread


def refuse_other_preferences(shares: Mapping[str, float], records: Sequence[Conversation]) -> None:
    """`DataError` when a split is for pairs and the data has single answers with a label instead, or the other way round."""
    labelled, paired = sum(record.label is not None for record in records), sum(bool(record.rejected) for record in records)
    for name in shares:
        if kind_of(name) in PAIRS and labelled and not paired:
            raise DataError(f"data.splits.{name}: expected preference pairs (chosen and rejected), got {labelled} single answers with a `label`; "
                            "learn from these with the objective `kto` on a split `labelled`, as the recipe kto does, or bring pairs")
        if kind_of(name) in SINGLE and not labelled:
            raise DataError(f"data.splits.{name}: expected answers with a `label`, true or false, got {f'{paired} preference pairs' if paired else 'none'}; "
                            + ("learn from these with preference.dpo on a split `reward`, as the recipe dpo does, or bring rows with prompt, completion and label"
                               if paired else "bring rows with prompt, completion and label"))
