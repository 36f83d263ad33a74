"""`ratchet init`: write a commented recipe for a data file."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from ratchet.components.errors import RecipeError

CHARACTERS = 3.5  # characters per token, in most English tokenizers
LONGEST = 2048  # upper bound of the proposed max_tokens
TEMPLATE = 48  # tokens added by a chat template
FEW = 100  # rows below which a split may be a single one
FEW_PROMPTS = 400  # prompts below which the splits of `instruct` may be smaller than its own bound


class Kind(NamedTuple):
    """How rows of a kind are trained. `method`: in words; `base`: a shipped recipe; `splits`: shares of the
    rows, that of the training rows first; those of the base if empty.
    """

    what: str
    method: str
    base: str
    splits: Mapping[str, float]


PAIRS, LABELLED = {"reward": 0.9, "evaluate": 0.1}, {"labelled": 0.9, "evaluate": 0.1}
ANSWERS, REPLIES = {"prompts": 0.9, "evaluate": 0.1}, {"sft": 0.85, "sft_validation": 0.05, "evaluate": 0.1}
BY_ANSWERS = "GRPO, rewarded by the reference answers,"
BY_INSTRUCTIONS = "SFT, offline and online DPO on verifiable instructions"
KINDS = {
    "preference": Kind("preference pairs", "DPO", "dpo", PAIRS),
    "label": Kind("answers with a label", "KTO", "kto", LABELLED),
    "answer": Kind("prompts with a reference answer", BY_ANSWERS, "rlvr_grpo", ANSWERS),
    "reply": Kind("conversations", "Supervised fine-tuning", "sft", REPLIES),
    "prompt": Kind("prompts without answers", BY_INSTRUCTIONS, "instruct", {}),
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
    of = ", ".join(f"{count:,} {KINDS[one].what}" for one, count in counts.items())
    kind = KINDS[next(iter(counts))]
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
        typer.echo(f"  the first row that is left out: {dropped.explained}")
    typer.echo(f"ratchet plan {out} --estimate   # what it would take\nratchet run {out}")


def recipe(
    records: Sequence[Any], dropped: int, file: Path, out: Path, model: str | None
) -> tuple[str, dict[str, int]]:
    """The recipe's text, and the number of rows of each kind, that of the recipe first."""
    from jinja2 import Template

    from ratchet.components.recipes.plain_values import plain
    from ratchet.components.recipes.recipe import load
    from ratchet.flows.recipe_pieces import yaml_line

    counts = _kinds(records)
    name, rows = next(iter(counts.items()))
    kind = KINDS[name]
    policy = plain(load("instruct")[0].models["policy"])
    if model:
        policy = {"source": model, "format": "tiny" if model.startswith("generate:tiny") else "auto"}
    template = Path(__file__).with_name("init.yaml.j2").read_text()
    text = Template(template, trim_blocks=True, keep_trailing_newline=True).render(
        kind=kind,
        rows=rows,
        others=len(records) - rows,
        dropped=dropped,
        few=len(records) < (FEW if kind.splits else FEW_PROMPTS),
        model=model or DEFAULT,
        policy=policy,
        file=file.name,
        source=os.path.relpath(file.resolve(), out.resolve().parent),
        out=out.name,
        count="{:,}".format,
        quoted=lambda value: json.dumps(value, ensure_ascii=False),  # JSON is YAML
        splits=yaml_line(kind.splits),
        **_sizes(records, kind),
    )
    return text, counts


def _sizes(records: Sequence[Any], kind: Kind) -> dict[str, Any]:
    """`tokens` that 95 % of the records are shorter than, `epochs` for about a hundred `steps`, prompts of a
    round of `instruct`, the numbers of `liked` and `disliked` answers, and weights that balance these.
    """
    lengths = sorted(sum(len(m["content"]) for m in record.messages) for record in records)
    longest = lengths[int(0.95 * (len(lengths) - 1))] / CHARACTERS + TEMPLATE
    learned = max(1, round(len(records) * next(iter(kind.splits.values()), 1.0)))
    epochs = min(8, max(1, round(1600 / learned)))  # about a hundred steps of 16 for small data
    liked = sum(record.label is True for record in records)
    disliked = sum(record.label is False for record in records)
    more = max(liked, 1) / max(disliked, 1)
    return {
        "tokens": min(LONGEST, max(128, -(-int(longest) // 64) * 64)),
        "epochs": epochs,
        "steps": max(1, learned * epochs // 16),
        "per_round": max(1, min(64, len(records) // 20)),  # three rounds within a fifth of the rows
        "liked": liked,
        "disliked": disliked,
        "desirable": round(max(1.0, 1 / more), 2),
        "undesirable": round(max(1.0, more), 2),
    }


def _prompt(record: Any) -> tuple[str, ...]:
    return tuple(message["content"] for message in record.messages[: record.opening])


def _kinds(records: Sequence[Any]) -> dict[str, int]:
    """The number of records of each of `KINDS`, the most frequent first; of equally frequent kinds the one
    with more to learn from. Labels and reference answers take precedence over replies; answers to one prompt
    with different ratings are pairs.
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
    return {one: found[one] for one in sorted(KINDS, key=lambda one: -found[one]) if found[one]}
