"""Curation: raw records to Parquet groups by split, with every drop counted and nothing lost.

The `data` section of a recipe:

    source, sha256              where from, see `sources.py`
    config                      configuration of a published data set, see `published.py`
    parser, columns             `auto`, or a piece of components/pieces/parsers; names of columns, see `parsing.py`
    sources                     in place of these: several, each with the same keys and splits, weight, limit, see `mixture.py`
    transforms                  pieces in order, each with its options
    splits                      split: share, or {split, share}, the published split it is made from. A name says what is built: sft, prompts,
                                evaluate, reward, gold, pairs, each also with `_validation`
    near_threshold              likeness at which a record is dropped from the later of two splits; null: not compared
    decontaminate               so many words in a row shared with a question that is evaluated drop a record that is trained on; null: not compared
    sft, prompts, evaluate, demonstrate, preferences, reward, gold, pairs, labelled      options of the builder of that name (`builders.py`); those that
                                make prompts also `transforms`: pieces applied to the records of the split alone, after splitting.
                                `demonstrate_validation` and `preferences_validation` are like those without unless they are there
    max_dropped                 share of the source's records that parsing and the transforms may lose, and of each split's that building
                                it may (too long, an empty turn, ...), copies of kept ones and what the recipe rules out aside; null: any
    max_quarantined, min_groups, min_topics, max_topic_share, rating_range, languages      what `tasks/data/validation.py` reads
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from ratchet.components.data.builders import BUILDERS
from ratchet.components.data.decontaminate import decontaminate
from ratchet.components.data.groups import save_table, write_groups
from ratchet.components.data.mixture import mixed, read_sources, report_sources
from ratchet.components.data.offered import NEEDS, divided, offered, refuse_other_preferences
from ratchet.components.data.published import TRAINING, home_of, wanted
from ratchet.components.data.records import Conversation, CountTokens, Dropped, Sifted, counted_once
from ratchet.components.data.splits import apart
from ratchet.components.data.statistics import kind_of, soundness, statistics
from ratchet.components.errors import DataError, GateError
from ratchet.components.piece import build
from ratchet.components.recipes.conform import conform
from ratchet.components.recipes.sections import SHARES, Contexts, Data
from ratchet.components.stages.progress import advance, expect
from ratchet.components.types import Group

Summary = dict[str, Any]


def curate(section: Mapping[str, Any], source: Path | Sequence[Path], count_tokens: CountTokens, out: Path, seed: int,
           read: Collection[str] = ()) -> Summary:
    """Write `<split>.parquet`, `statistics.parquet`, `quarantine.jsonl` and `summary.json` under `out`.

    `read`: the splits that the recipe reads, which are made where `data.splits` names none. Same section, source and seed: same bytes. Raises `RecipeError` for the section, `DataError` for the data, `GateError` when
    more than `max_dropped` of the records are lost, with `quarantine.jsonl` written.
    """
    data: Data = conform(Data, section, "data")
    count_tokens = counted_once(count_tokens)
    sources = [source] if isinstance(source, Path) else source
    expect("steps", 4 + len(data.transforms) + len(data.splits or SHARES))
    out.mkdir(parents=True, exist_ok=True)
    quarantine: list[tuple[str, Dropped]] = []
    steps: list[dict[str, Any]] = []

    def note(stage: str, before: int, sifted: Sifted) -> list[Any]:
        quarantine.extend((stage, dropped) for dropped in sifted.dropped)
        changed = {what: number for what, number in sifted.changed.items() if number}
        steps.append({"step": stage, "in": before, "out": len(sifted.kept), "dropped": sifted.reasons(), "changed": changed})
        advance()
        return sifted.kept

    parsed = read_sources(data, sources, seed)
    total = len(parsed.kept) + len(parsed.dropped)
    benchmarks = [record for record in parsed.kept if record.published == "benchmark"]
    everything: list[Conversation] = note("parse", total, parsed)
    records = [record for record in everything if record.published != "benchmark"]
    for spec in data.transforms:
        records = note(spec["name"], len(records), build("transform", spec)(records, count_tokens))
    write_quarantine(out / "quarantine.jsonl", quarantine)
    if not records:
        raise DataError(f"no record of {', '.join(label or path.name for label, path in zip(data.labels, sources, strict=True))} survives the transforms: {[(s['step'], s['dropped']) for s in steps]}")
    early = _refuse_loss(quarantine, total, data.max_dropped, "are lost before the split", out / "quarantine.jsonl")
    if any(one.weight for one in data.sources):
        records = note("mix", len(records), mixed(data, records, seed))

    shares = data.splits or offered(records, read, parsed.changed)
    homes = home_of(wanted(shares), {record.published for record in records})
    refuse_other_preferences(data.splits or (), records)
    parts, unread = divided(records, shares, homes, steps, seed)
    note("split", len(records), Sifted([r for part in parts.values() for r in part], unread))
    if data.decontaminate:
        before = sum(map(len, parts.values()))
        parts, contaminated = decontaminate(parts, benchmarks, data.decontaminate)
        note("decontaminate", before, Sifted([r for part in parts.values() for r in part], contaminated))
    if data.near_threshold is not None:
        before = sum(map(len, parts.values()))
        near, crossing = apart({name: parts[name] for name in sorted(parts, key=lambda name: homes[name] in TRAINING)}, data.near_threshold)
        parts = {name: near[name] for name in parts}
        note("near duplicates across splits", before, Sifted([r for part in parts.values() for r in part], crossing))
    built: dict[str, list[Group]] = {}
    for name, part in parts.items():
        options = data.of(name)
        for spec in options.transforms if isinstance(options, Contexts) else ():
            part = note(f"{spec['name']} of {name}", len(part), build("transform", spec)(part, count_tokens))
        made = BUILDERS[kind_of(name)](part, count_tokens, options, seed)
        kept, unsound = _sound(name, made.kept, count_tokens, options.max_tokens)
        built[name] = note(f"build {name}", len(part), Sifted(kept, [*made.dropped, *unsound], made.changed))
    write_quarantine(out / "quarantine.jsonl", quarantine)
    if empty := [name for name, groups in built.items() if not groups]:
        why = next(s["dropped"] for s in steps if s["step"] == f"build {empty[0]}")
        needs = f"it is made of {NEEDS[kind_of(empty[0])]}; " if kind_of(empty[0]) in NEEDS else ""
        raise DataError(f"split {empty[0]!r} is empty: {len(parts[empty[0]])} records came in and none made a group ({why}); "
                        f"{needs}look at the data, or loosen the bounds of data.{kind_of(empty[0])}")
    warnings: list[str] = []
    for name, part in parts.items():
        lost = [entry for entry in quarantine if entry[0] == f"build {name}"]
        long = f"raise data.{kind_of(name)}.max_tokens (now {data.of(name).max_tokens})" if any(LONG.search(record.reason) for _, record in lost) else ""
        warnings += _refuse_loss(lost, len(part), data.max_dropped, f"of split {name!r} are lost", out / "quarantine.jsonl", long)
    for name, groups in built.items():
        write_groups(out / f"{name}.parquet", groups)
    bounds = {name: data.of(name).max_tokens for name in built}
    save_table(statistics(built, count_tokens, bounds, homes), out / "statistics.parquet")
    summary: Summary = {
        "steps": steps,
        "splits": {name: {"groups": len(groups), "records": len(parts[name]), "topics": len({r.topic for r in parts[name]}),
                          **({"published": homes[name]} if homes[name] else {})}
                   for name, groups in built.items()},
        **({"sources": report_sources(data, everything, built)} if data.sources else {}),
        "warnings": early + warnings, "quarantined": len(quarantine), "ratings": rating_report(records),
        "pairs": {name: pair_report(groups) for name, groups in built.items() if any(len(g.trajectories) == 2 for g in groups)},
        "seed": seed,
    }
    (out / "summary.json").write_text(json.dumps(summary, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return summary


WARN_LOST = 0.05
"""Share of records lost from which on curation warns."""
LONG = re.compile(r"too long|max_tokens")
"""Reasons of the builders that a larger `max_tokens` cures."""
SOUND = {"no_empty_turn": "a turn is empty", "prompt_ends_well": "there is no prompt, or it ends with the assistant",
         "roles_alternate": "user and assistant do not take turns", "last_is_assistant": "the last turn is not the assistant's",
         "chosen_ne_rejected": "chosen and rejected are the same", "within_token_bound": "over the max_tokens of its split"}
"""What every group must be, by its column in the statistics, and the reason when it is not."""


def _sound(split: str, groups: Sequence[Group], count_tokens: CountTokens, bound: int | None) -> tuple[list[Group], list[Dropped]]:
    """The groups that validation would pass on their own, and the others with the reason."""
    kept: list[Group] = []
    dropped: list[Dropped] = []
    for group in groups:
        columns = soundness(split, group, count_tokens, bound)
        wrong = next((reason for column, reason in SOUND.items() if not columns[column]), None)
        if wrong is None:
            kept.append(group)
        else:
            said = {"prompt": list(group.prompt.messages), "completions": [list(path.messages) for path in group.trajectories]}
            dropped.append(Dropped(group.prompt.id, wrong, said))
    return kept, dropped


def _refuse_loss(dropped: Sequence[tuple[str, Dropped]], records: int, limit: float | None, where: str, file: Path, remedy: str = "") -> list[str]:
    """`GateError` when more than `limit` (a share) of the records were dropped, copies of kept ones aside; a warning when it is more than a few."""
    lost = Counter((stage, record.reason.partition(":")[0]) for stage, record in dropped if not record.copy)
    worst = "; ".join(f"{stage}: {reason} ({number / records:.1%})" for (stage, reason), number in lost.most_common(3))
    said = f"{lost.total()} of {records} records ({lost.total() / max(1, records):.1%}) {where}"
    if limit is not None and lost.total() > limit * records:
        raise GateError(f"data.max_dropped: {said}, at most {limit:.1%} may be; by step: {worst}. See {file}; {remedy or 'mend the data'}, "
                        "or raise the limit if they are no loss")
    known = limit is None or limit > (Data.max_dropped or 1)  # the recipe itself says that so many are no loss
    return [f"{said}; by step: {worst}{f'; {remedy}' if remedy else ''}"] if lost.total() > WARN_LOST * records and not known else []


def write_quarantine(path: Path, dropped: Sequence[tuple[str, Dropped]]) -> None:
    """One JSON object a line: id, stage, reason, record (absent where the source still has it unharmed)."""
    lines = [json.dumps({"id": d.id, "stage": stage, "reason": d.reason, "record": d.record}, ensure_ascii=False) + "\n"
             for stage, d in dropped]
    path.write_text("".join(lines), encoding="utf-8", errors="replace")


def rating_report(records: Sequence[Conversation]) -> dict[str, Any]:
    """How many are rated and how ratings go with length: Pearson's correlation with the log of turns and characters."""
    rated = [(r.rating, math.log(len(r.messages)), math.log(1 + len(r.text))) for r in records
             if r.rating is not None and r.messages]
    if len(rated) < 3:
        return {"rated": len(rated)}
    import numpy as np

    mean, turns, characters = np.array(rated).T
    common, times = Counter(mean.tolist()).most_common(1)[0]

    def with_rating(values: Any) -> float | None:
        return round(float(np.corrcoef(mean, values)[0, 1]), 4) if mean.std() > 0 and values.std() > 0 else None

    return {"rated": len(rated), "mean": round(float(mean.mean()), 4), "most_common": [common, times],
            "correlation_log_turns": with_rating(turns), "correlation_log_characters": with_rating(characters)}


def pair_report(groups: Sequence[Group]) -> dict[str, Any]:
    """How often the chosen side is the longer one (half when length says nothing), and how many conversations are in."""
    sizes = [[sum(len(m["content"]) for m in path.messages) for path in group.trajectories] for group in groups]
    longer = sum(chosen > rejected for chosen, rejected in sizes) + 0.5 * sum(a == b for a, b in sizes)
    conversations = {path.meta.get("conversation", f"{group.prompt.id} {i}") for group in groups
                     for i, path in enumerate(group.trajectories)}
    return {"pairs": len(groups), "chosen_is_longer": round(longer / len(sizes), 4), "conversations": len(conversations),
            "positions": dict(sorted(Counter(str(g.prompt.meta.get("position", "")) for g in groups).items()))}
