"""Data curation: raw records to Parquet groups by split; every dropped record is counted and quarantined.

The `data` section of a recipe:

    source, sha256              address of the data, see `sources.py`
    config                      configuration of a published data set, see `published.py`
    parser, columns             `auto`, or a piece of components/pieces/parsers; column names, see
                                `parsing.py`
    sources                     alternatively several sources, each with these keys and splits, weight, limit,
                                see `mixture.py`
    transforms                  pieces in order, each with its options
    splits                      split: share, or {split, share} with the published split it is made from. The
                                name selects the builder: sft, prompts, evaluate, reward, gold, pairs, each
                                also with `_validation`
    near_threshold              similarity above which a record is dropped from the later of two splits; null:
                                off
    decontaminate               number of consecutive words shared with an evaluation question that drops a
                                training record; null: off
    sft, prompts, evaluate, demonstrate, preferences, reward, gold, pairs, labelled
                                options of that builder (`builders.py`); builders of prompts also take
                                `transforms`, applied to the split's records after splitting.
                                `demonstrate_validation` and `preferences_validation` default to those without
                                the suffix
    max_dropped                 maximum share of a source's records lost in parsing and transforms, and of
                                each split's records lost in building (too long, empty turn, ...); duplicates
                                and exclusions by the recipe do not count; null: off
    max_quarantined, min_groups, min_topics, max_topic_share, rating_range, languages
                                read by `tasks/data/validation.py`
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ratchet.components.data.builders import BUILDERS
from ratchet.components.data.curation_report import pair_report, rating_report, write_quarantine
from ratchet.components.data.decontaminate import decontaminate
from ratchet.components.data.groups import write_groups
from ratchet.components.data.lost_records import check_loss
from ratchet.components.data.mixture import mixed, read_sources, report_sources
from ratchet.components.data.offered import NEEDS, default_shares, refuse_other_preferences, split_records
from ratchet.components.data.parquet import save_table
from ratchet.components.data.published import home_of, training, wanted
from ratchet.components.data.records import (
    Conversation,
    CountTokens,
    FilterResult,
    Rejected,
    memoize_token_count,
)
from ratchet.components.data.splits import drop_near_duplicates
from ratchet.components.data.statistics import kind_of, soundness, statistics
from ratchet.components.errors import DataError
from ratchet.components.piece import build
from ratchet.components.recipes.conform import conform
from ratchet.components.recipes.sections import Contexts, Data
from ratchet.components.recipes.splits import SHARES
from ratchet.components.stages.progress import advance, expect
from ratchet.components.types import Group

Summary = dict[str, Any]


@dataclass(frozen=True)
class Curated:
    """Groups of each split in `splits`, the records that they were made from in `parts`; `homes`: the
    published split that each split is made from.
    """

    read: list[Conversation]
    records: list[Conversation]
    parts: dict[str, list[Conversation]]
    splits: dict[str, list[Group]]
    homes: Mapping[str, str]
    steps: list[dict[str, Any]]
    quarantine: list[tuple[str, Rejected]]
    warnings: list[str]


def curate(
    section: Mapping[str, Any],
    source: Path | Sequence[Path],
    count_tokens: CountTokens,
    out: Path,
    seed: int,
    read: Collection[str] = (),
) -> Summary:
    """Write `<split>.parquet`, `statistics.parquet`, `quarantine.jsonl` and `summary.json` to `out`.
    Deterministic bytes for equal arguments.

    `read`: splits that the recipe reads; they are made if `data.splits` is not given. `RecipeError` for an
    invalid section, `DataError` for unusable data, `GateError` if more than `max_dropped` of the records are
    lost (`quarantine.jsonl` is written first).
    """
    data: Data = conform(Data, section, "data")
    count_tokens = memoize_token_count(count_tokens)
    sources = [source] if isinstance(source, Path) else source
    expect("steps", 4 + len(data.transforms) + len(data.splits or SHARES))
    out.mkdir(parents=True, exist_ok=True)
    made = curate_records(
        data, read_sources(data, sources, seed), count_tokens, seed, read, out / "quarantine.jsonl"
    )
    for name, groups in made.splits.items():
        write_groups(out / f"{name}.parquet", groups)
    bounds = {name: data.of(name).max_tokens for name in made.splits}
    region = next((spec["region"] for spec in data.transforms if "region" in spec), "US")
    table = statistics(made.splits, count_tokens, bounds, made.homes, region=region)
    save_table(table, out / "statistics.parquet")
    summary: Summary = {
        "steps": made.steps,
        "splits": {
            name: {
                "groups": len(groups),
                "records": len(made.parts[name]),
                "topics": len({r.topic for r in made.parts[name]}),
                **({"published": made.homes[name]} if made.homes[name] else {}),
            }
            for name, groups in made.splits.items()
        },
        **({"sources": report_sources(data, made.read, made.splits)} if data.sources else {}),
        "warnings": made.warnings,
        "quarantined": len(made.quarantine),
        "ratings": rating_report(made.records),
        "pairs": {
            name: pair_report(groups)
            for name, groups in made.splits.items()
            if any(len(g.trajectories) == 2 for g in groups)
        },
        "seed": seed,
    }
    (out / "summary.json").write_text(
        json.dumps(summary, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
    )
    return summary


def curate_records(
    data: Data,
    parsed: FilterResult,
    count_tokens: CountTokens,
    seed: int,
    read: Collection[str] = (),
    file: Path | None = None,
) -> Curated:
    """Groups of every split, from parsed records. `file`: where the quarantine is written. Errors as in
    `curate`.
    """
    quarantine: list[tuple[str, Rejected]] = []
    steps: list[dict[str, Any]] = []

    def note(stage: str, before: int, sifted: FilterResult) -> list[Any]:
        quarantine.extend((stage, dropped) for dropped in sifted.dropped)
        changed = {what: number for what, number in sifted.changed.items() if number}
        steps.append(
            {
                "step": stage,
                "in": before,
                "out": len(sifted.kept),
                "dropped": sifted.reasons(),
                "changed": changed,
            }
        )
        advance()
        return sifted.kept

    total = len(parsed.kept) + len(parsed.dropped)
    benchmarks = [record for record in parsed.kept if record.published == "benchmark"]
    everything: list[Conversation] = note("parse", total, parsed)
    records = [record for record in everything if record.published != "benchmark"]
    labels = dict[str, str]()  # of the sources, by the id of a record
    for spec in data.transforms:
        labels |= {record.id: record.source for record in records}
        records = note(spec["name"], len(records), build("transform", spec)(records, count_tokens))
    write_quarantine(file, quarantine)
    if not records:
        named = [label or one.source for label, one in zip(data.labels, data.every_source, strict=True)]
        raise DataError(
            f"no record of {', '.join(named)} "
            f"is left after the transforms: {[(s['step'], s['dropped']) for s in steps]}"
        )
    early: list[str] = []
    for label in data.labels if data.sources else [""]:
        lost = [one for one in quarantine if not label or label == (one[1].source or labels.get(one[1].id))]
        count = sum(not label or one.source == label for one in (*parsed.kept, *parsed.dropped))
        of = f"of {label} are lost before the split" if label else "are lost before the split"
        early += check_loss(lost, count, data.max_dropped, of, file)
        if label and any(one.copy and one.source == label for one in parsed.dropped):  # beyond its `limit`
            transformed = [one for one in lost if one[0] != "parse"]
            left = sum(one.source == label for one in parsed.kept)
            of = f"of {label} within its limit are lost before the split"
            early += check_loss(transformed, left, data.max_dropped, of, file)
    if any(one.weight for one in data.sources):
        records = note("mix", len(records), mixed(data, records, seed))

    shares = data.splits or default_shares(records, read, parsed.changed)
    homes = home_of(wanted(shares), {record.published for record in records})
    refuse_other_preferences(data.splits or (), records)
    parts, unread = split_records(records, shares, homes, steps, seed)
    note("split", len(records), FilterResult([r for part in parts.values() for r in part], unread))
    if data.decontaminate:
        before = sum(map(len, parts.values()))
        parts, contaminated = decontaminate(parts, benchmarks, data.decontaminate)
        note(
            "decontaminate", before, FilterResult([r for part in parts.values() for r in part], contaminated)
        )
    if data.near_threshold is not None:
        before, trained = sum(map(len, parts.values())), training(data.splits)
        near, crossing = drop_near_duplicates(
            {name: parts[name] for name in sorted(parts, key=lambda name: homes[name] in trained)},
            data.near_threshold,
        )
        parts = {name: near[name] for name in parts}
        note(
            "near duplicates across splits",
            before,
            FilterResult([r for part in parts.values() for r in part], crossing),
        )
    built: dict[str, list[Group]] = {}
    for name, part in parts.items():
        options = data.of(name)
        for spec in options.transforms if isinstance(options, Contexts) else ():
            part = note(f"{spec['name']} of {name}", len(part), build("transform", spec)(part, count_tokens))
        made = BUILDERS[kind_of(name)](part, count_tokens, options, seed)
        kept, unsound = _sound(name, made.kept, count_tokens, options.max_tokens)
        built[name] = note(
            f"build {name}", len(part), FilterResult(kept, [*made.dropped, *unsound], made.changed)
        )
    write_quarantine(file, quarantine)
    if empty := [name for name, groups in built.items() if not groups]:
        dropped = next(s["dropped"] for s in steps if s["step"] == f"build {empty[0]}")
        why = "; ".join(
            [f"{reason}: {number}" for reason, number in dropped.items()]
            + [f"{what}: {number}" for what, number in parsed.changed.items() if number]
        )
        needs = f"it is made of {NEEDS[kind_of(empty[0])]}; " if kind_of(empty[0]) in NEEDS else ""
        raise DataError(
            f"split {empty[0]!r} is empty: {len(parts[empty[0]])} records came in but no group was built "
            f"({why}); "
            f"{needs}check the data, or loosen the bounds of data.{kind_of(empty[0])}"
        )
    warnings: list[str] = []
    for name, part in parts.items():
        lost = [entry for entry in quarantine if entry[0] == f"build {name}"]
        long = (
            f"raise data.{kind_of(name)}.max_tokens (now {data.of(name).max_tokens})"
            if any(LONG.search(record.reason) for _, record in lost)
            else ""
        )
        warnings += check_loss(lost, len(part), data.max_dropped, f"of split {name!r} are lost", file, long)
    return Curated(everything, records, parts, built, homes, steps, quarantine, early + warnings)


LONG = re.compile(r"too long|max_tokens")
"""Drop reasons that a larger `max_tokens` would avoid."""
SOUND = {
    "no_empty_turn": "a turn is empty",
    "prompt_ends_well": "there is no prompt, or it ends with the assistant",
    "roles_alternate": "user and assistant turns do not alternate",
    "last_is_assistant": "the last turn is not the assistant's",
    "chosen_ne_rejected": "chosen and rejected are the same",
    "within_token_bound": "over the max_tokens of its split",
}
"""Required properties of a group: column in the statistics -> drop reason if false."""


def _sound(
    split: str, groups: Sequence[Group], count_tokens: CountTokens, bound: int | None
) -> tuple[list[Group], list[Rejected]]:
    """Split groups into those that pass the per-group validation checks and rejected ones with reasons."""
    kept: list[Group] = []
    dropped: list[Rejected] = []
    for group in groups:
        columns = soundness(split, group, count_tokens, bound)
        wrong = next((reason for column, reason in SOUND.items() if not columns[column]), None)
        if wrong is None:
            kept.append(group)
        else:
            content = {
                "prompt": list(group.prompt.messages),
                "completions": [list(path.messages) for path in group.trajectories],
            }
            dropped.append(Rejected(group.prompt.id, wrong, content))
    return kept, dropped
