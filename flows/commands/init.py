"""`ratchet init`: write a commented recipe for a data file."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from ratchet.components.errors import RecipeError

CHARACTERS = 3.5  # characters per token, in most English tokenizers
LONGEST = 2048  # upper bound of the proposed max_tokens
TEMPLATE = 48  # tokens added by a chat template
FEW = 100  # rows below which a split may be a single one
FEW_PROMPTS = 400  # prompts below which the splits of `instruct` may be smaller than its own bound


def _learned(section: str, rows: str, rate: str, objective: str = "") -> str:
    """YAML section of a training stage, a format string for `recipe`."""
    updates = f"    updates:\n      policy: {objective}\n" if objective else ""
    return (
        f"{section}:\n  max_tokens: {{tokens}}            # prompt and answer together; 95 % of your rows "
        f"are shorter\n  fit:\n{updates}"
        f"    batch: 16                # {rows} a step\n    epochs: {{epochs}}                # about "
        f"{{steps}} steps\n"
        f"    learning_rate: {rate}\n    adapter: {{{{name: full}}}}    # or {{{{name: lora, rank: 16}}}}\n"
    )


SFT = _learned("sft", "conversations", "2.0e-5")
PREFERENCE = _learned(
    "offline",
    "pairs",
    "5.0e-6",
    "[{{name: preference.dpo, beta: 0.1}}]   # the others: components/pieces/objectives/preference.py",
)
LABEL = _learned(
    "offline",
    "answers",
    "5.0e-6",
    "[{{name: kto, beta: 0.1, desirable: {desirable}, undesirable: {undesirable}}}]   "
    "# {liked} answers are liked, {disliked} are not",
)
ANSWER = """\
online:
  rounds: 100                # on-policy steps
  prompts_per_round: 8
  rollout: {{responses_per_prompt: 8, max_tokens: 256, temperature: 1.0}}
  fit: {{batch: 8, learning_rate: 1.0e-5}}
"""
PROMPT = """\
online:
  rounds: 3
  prompts_per_round: 64
"""


@dataclass(frozen=True, eq=False)
class Kind:
    """How rows of a kind are trained. `method`: in words; `base`: recipe that ships; `main`: split with the
    training rows; `splits`: share of each split.
    """

    what: str
    method: str
    base: str
    main: str
    splits: Mapping[str, float | None]
    section: str


KINDS = {
    "preference": Kind(
        "preference pairs", "DPO", "dpo", "reward", {"reward": 0.9, "evaluate": 0.1}, PREFERENCE
    ),
    "label": Kind(
        "answers with a label", "KTO", "kto", "labelled", {"labelled": 0.9, "evaluate": 0.1}, LABEL
    ),
    "answer": Kind(
        "prompts with a reference answer",
        "GRPO, rewarded by the reference answers,",
        "rlvr_grpo",
        "prompts",
        {"prompts": 0.9, "evaluate": 0.1},
        ANSWER,
    ),
    "reply": Kind(
        "conversations",
        "Supervised fine-tuning",
        "sft",
        "sft",
        {"sft": 0.85, "sft_validation": 0.05, "evaluate": 0.1},
        SFT,
    ),
    "prompt": Kind(
        "prompts without answers",
        "SFT, offline and online DPO on verifiable instructions",
        "instruct",
        "prompts",
        {},
        PROMPT,
    ),
}
DEFAULT = "SmolLM2-135M-Instruct"  # the model of `instruct`


def init(
    data: Annotated[str, typer.Argument(help="File or folder: JSONL, JSON, CSV, TSV, Parquet, Arrow.")],
    out: Annotated[Path, typer.Option(help="Recipe file to write.")] = Path("mine.yaml"),
    model: Annotated[
        str | None,
        typer.Option(help=f"Model to train: hub:org/name or path:/models/mine. Default: {DEFAULT}."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing recipe.")] = False,
) -> None:
    """Detect the layout of a data file and write a commented, checked recipe for it."""
    from ratchet.components.data.choose_parser import layout_of
    from ratchet.components.data.parsing import parse
    from ratchet.components.recipes.check_data import check_files
    from ratchet.components.recipes.recipe import load
    from ratchet.components.storage.store import write_atomic

    file = Path(data.removeprefix("path:"))
    if ":" in data and not data.startswith("path:") and not file.exists():
        raise RecipeError(
            f"init needs local data, got {data}; download it first, or write `data.source: {data!r}` "
            "into a recipe of your own (docs/data.md)"
        )
    if not file.exists():
        raise RecipeError(
            f"no file or directory {file}; expected JSONL, JSON, CSV, TSV, Parquet, or a directory of these"
        )
    if out.suffix not in (".yaml", ".yml"):
        raise RecipeError(f"--out {out}: expected a name that ends in .yaml")
    if out.exists() and not force:
        raise RecipeError(f"{out} exists already; choose another --out, or overwrite it with --force")
    parsed = parse(file)
    text, counts = recipe(parsed.kept, len(parsed.dropped), file, out, model)
    trial = out.with_name(
        f"{out.stem}.{os.getpid()}.yaml"
    )  # in the same directory, since paths are relative to the file
    try:
        write_atomic(trial, text)
        checked = check_files(load(trial)[0])
        os.replace(trial, out)
    finally:
        trial.unlink(missing_ok=True)
    of = ", ".join(f"{count:,} {one.what}" for one, count in counts.items())
    kind = next(iter(counts))
    typer.echo(
        f"{out}: {of} in the layout `{layout_of(file)}`"
        + (f", {len(parsed.dropped)} rows left out" if parsed.dropped else "")
        + f"; a recipe over `{kind.base}`"
        + (f" for the {kind.what}" if len(counts) > 1 else "")
        + ", checked"
    )
    for line in checked.lines():
        typer.echo(f"  {line}")
    for dropped in parsed.dropped[:1]:
        typer.echo(f"  the first row that is left out: {dropped.reason}")
    typer.echo(f"ratchet plan {out} --estimate   # what it would take\nratchet run {out}")


def recipe(
    records: Sequence[Any], dropped: int, file: Path, out: Path, model: str | None
) -> tuple[str, dict[Kind, int]]:
    """The recipe's text, and the number of rows of each kind, that of the recipe first."""
    from ratchet.components.recipes.recipe import load

    counts = _kinds(records)
    kind = next(iter(counts))
    tokens, section = _training(records, kind)
    policy = load("instruct")[0].models["policy"]
    about = f"{kind.method} of {model or DEFAULT}, on {file.name}."
    policy_lines = (
        [
            f"source: {_quoted(model)}",
            "sha256: null",
            f"format: {'tiny' if model.startswith('generate:tiny') else 'auto'}",
        ]
        if model
        else [
            f'source: "{policy.source}"',
            f"sha256: {policy.sha256}",
            f"format: {policy.format}",
            f"shape: {json.dumps(policy.shape)}   # for `plan --estimate` before the download",
        ]
    )
    source = os.path.relpath(file.resolve(), out.resolve().parent)
    lines = [
        f"# Made by `ratchet init`: {counts[kind]:,} {kind.what}"
        + (f", {len(records) - counts[kind]:,} rows of other kinds" if len(counts) > 1 else "")
        + (f" ({dropped} rows of the file cannot be read)" if dropped else "")
        + ".",
        f"# What is not here is as in `{kind.base}`: `ratchet recipes explain {out.name} --defaults` "
        f"writes every key out, `ratchet recipes check {out.name}` checks it.",
        "schema: 1",
        f"base: {kind.base}",
        f"about: {json.dumps(about)}",
        "models:",
        "  policy:                    # hub:org/name, path:/models/mine, registry:name@champion, ...",
        *(f"    {line}" for line in policy_lines),
        "data:",
        f"  source: {_quoted(f'path:{source}')}   # relative to this file",
        "  sha256: null               # the data of the day; a hash pins it",
        "  parser: auto               # or the name of a layout; `columns` gives yours other names: "
        "docs/data.md",
        *_data_lines(kind, len(records), tokens),
        section.rstrip(),
        "evaluate:",
        "  prompts: 64                # held-out prompts; more make the intervals narrower",
        "  max_tokens: 128            # of an answer",
        "register:",
        "  gates:                     # what must hold before a version may become champion",
        "    final.ended: {over: 0.8}          # share of answers that end by themselves",
        "    final.repetitive: {below: 0.1}    # share of answers that repeat themselves",
    ]
    return "\n".join(lines) + "\n", counts


def _data_lines(kind: Kind, rows: int, tokens: int) -> list[str]:
    """YAML lines of the section `data` that depend on the kind and number of rows."""
    if not kind.splits:
        return [
            "  transforms: [{name: normalise}, {name: scrub}, {name: duplicates}]   # each row is a "
            "prompt; the base extracts questions from conversations",
            *(["  min_groups: 1              # few rows for its splits"] if rows < FEW_PROMPTS else []),
        ]
    splits = ", ".join(f"{name}: {'null' if share is None else share}" for name, share in kind.splits.items())
    return [
        f"  splits: {{{splits}}}   # shares of the rows; published train and test files stay apart",
        f"  {kind.main}: {{max_tokens: {tokens}}}",
        "  min_topics: 1              # topics decide the splits, where the data has any",
        "  max_topic_share: 1.0",
        *(["  min_groups: 1              # few rows: a split may be a single one"] if rows < FEW else []),
    ]


def _training(records: Sequence[Any], kind: Kind) -> tuple[int, str]:
    """`max_tokens` of which 95 % of the records are shorter, and the YAML section of the training stage with
    enough epochs for about a hundred steps.
    """
    lengths = sorted(sum(len(m["content"]) for m in record.messages) for record in records)
    longest = lengths[int(0.95 * (len(lengths) - 1))] / CHARACTERS + TEMPLATE
    tokens = min(LONGEST, max(128, -(-int(longest) // 64) * 64))
    learned = max(1, round(len(records) * float(kind.splits.get(kind.main) or 0.5)))
    epochs = min(8, max(1, round(1600 / learned)))  # about a hundred steps of 16 for small data
    liked = sum(record.label is True for record in records)
    disliked = sum(record.label is False for record in records)
    more = max(liked, 1) / max(disliked, 1)
    section = kind.section.format(
        tokens=tokens,
        epochs=epochs,
        steps=max(1, learned * epochs // 16),
        liked=liked,
        disliked=disliked,
        desirable=round(max(1.0, 1 / more), 2),
        undesirable=round(max(1.0, more), 2),
    )
    return tokens, section


def _prompt(record: Any) -> tuple[str, ...]:
    return tuple(message["content"] for message in record.messages[: record.opening])


def _quoted(text: str) -> str:
    """A YAML string in double quotes, which JSON's are."""
    return json.dumps(text, ensure_ascii=False)


def _kinds(records: Sequence[Any]) -> dict[Kind, int]:
    """The number of records of each kind, the most frequent first; of equally frequent kinds the one with
    more to learn from. Labels and reference answers take precedence over replies; answers to one prompt with
    different ratings are pairs.
    """
    ratings: dict[Any, set[float | None]] = {}
    for record in records:
        ratings.setdefault(_prompt(record), set()).add(record.rating)

    def name(record: Any) -> str:
        rated = record.opening and record.rating is not None and len(ratings[_prompt(record)]) > 1
        if record.rejected or rated:
            return "preference"
        if record.label is not None:
            return "label"
        if record.answer:
            return "answer"
        replies = record.messages and record.messages[-1]["role"] == "assistant"
        return "reply" if replies else "prompt"

    found = Counter(name(record) for record in records)
    return {KINDS[one]: found[one] for one in sorted(KINDS, key=lambda one: -found[one]) if found[one]}
