"""Published splits of a data set: which files are training data and which are held out.

A file's split comes from the data card (`configs` in the front matter of README.md), else from a word in the
name of the file or its folder: `train.jsonl`, `data/test-00000-of-00001.parquet`, `gsm8k_test.jsonl`,
`validation/part-1.jsonl`. A source may also set them: `splits: {train: a.jsonl, test: "b*.jsonl"}`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ratchet.components.data.files import data_files
from ratchet.components.errors import DataError, RecipeError, SourceError, nearest
from ratchet.components.recipes.sections import DataSource
from ratchet.components.recipes.splits import SPLIT_COLUMN, kind_of

WORDS = {
    "train": "train",
    "training": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
    "testing": "test",
    "eval": "test",
    "evaluation": "test",
}
"""Words in file and split names -> split."""
NAMED = re.compile(rf"(?<![a-zA-Z])({'|'.join(WORDS)})(?![a-zA-Z])", re.IGNORECASE)
SHARD = re.compile(r"([-_.]\d+([-_]of[-_]\d+)?)+(-[0-9a-f]{8,})?$")
CARD = "README.md"

Files = list[tuple[str, Path]]


def published(
    path: Path,
    config: str | None = None,
    splits: Mapping[Any, str | Sequence[str]] | None = None,
    *,
    alone: bool = True,
) -> Files:
    """(split, file) of every data file; the split is "" if the data has no published splits, or one only.
    `config`: a configuration of the card, or a folder. `splits`: which published splits or files (names, or
    patterns such as `*test*`) are `train`, `validation`, `test` or `benchmark`; others are not read. `alone`:
    `one_split` of all sources; if false, a test or validation split keeps its name though it is the only one
    of its source. Raises `SourceError` or `DataError`.
    """
    if path.is_file() or not path.exists():
        if config is not None and path.exists():
            raise SourceError(
                f"{path} is a single file without configurations, got `config: {config}`; remove `config`"
            )
        if splits and len(splits) > 1:
            raise DataError(f"{path} is a single file: expected one split, got {', '.join(splits)}")
        return [(next(iter(splits or ("",))), file) for file in data_files(path)]
    files = _of_card(path, config) or [
        (_name(file.relative_to(path)), file) for file in data_files(_folder(path, config))
    ]
    if splits:
        return _chosen(path, files, splits)
    meant = {name: WORDS[match[1].lower()] if (match := NAMED.search(name)) else "" for name, _ in files}
    if len(set(meant.values())) < 2:
        return [("" if alone or meant[name] == "train" else meant[name], file) for name, file in files]
    for split in dict.fromkeys(meant.values()):
        alike = sorted(name for name in meant if meant[name] == split)
        if split and len(alike) > 1:
            raise DataError(
                f"{path} holds {len(alike)} {split} splits, {', '.join(alike)}; choose one: `splits: "
                f"{{{split}: {alike[0]}, ...}}` "
                "of its entry in data.sources"
            )
    return [(meant[name] or "train", file) for name, file in files]


def one_split(sources: Sequence[DataSource], paths: Sequence[Path]) -> bool:
    """Whether the sources together have one published split or none, and the recipe names none: then all of
    it is divided by the shares. Errors as in `published`.
    """
    if any(SPLIT_COLUMN in one.columns or set(one.splits or ()) - {"benchmark"} for one in sources):
        return False
    found = [
        published(path, one.config, one.splits, alone=False) for one, path in zip(sources, paths, strict=True)
    ]
    return len({split for files in found for split, _ in files} - {"benchmark"}) < 2


def held_out(name: str) -> bool:
    """Whether a split of a recipe is for evaluation or validation."""
    return name.endswith("_validation") or kind_of(name) == "evaluate"


def training(splits: Mapping[Any, Any] | None) -> set[str]:
    """Published splits used for training by `data.splits`; "" stands for none."""
    homes = [split for name, split in wanted(splits or {}).items() if not held_out(name)]
    return {"", *(split or "train" for split in homes or [None])}


def home_of(wanted: Mapping[str, str | None], have: Collection[str]) -> dict[str, str]:
    """The published split that each split of a recipe is made from. `wanted`: as set in the recipe, or None.
    By default `evaluate` is made from `test` (or `validation` if there is no test), `_validation` splits from
    the other held-out split, else from `train`, and training splits from `train`. `RecipeError` for a split
    that the data does not have.
    """
    if not set(have) - {""}:
        if named := next((name for name, split in wanted.items() if split), None):
            raise RecipeError(
                f"data.splits.{named}.split: the data has no published splits, so {wanted[named]!r} does "
                "not exist; set a share only"
            )
        return dict.fromkeys(wanted, "")
    held_out = [split for split in ("test", "validation") if split in have]
    taken = {split for name, split in wanted.items() if split and not name.endswith("_validation")}
    first = wanted.get("evaluate") or (held_out[0] if "evaluate" in wanted and held_out else None)
    rest = next((split for split in reversed(held_out) if split != first and split not in taken), "train")
    homes = {}
    for name, split in wanted.items():
        homes[name] = split or (
            first if name == "evaluate" and first else rest if name.endswith("_validation") else "train"
        )
        if homes[name] not in have:
            raise RecipeError(
                f"data.splits.{name}: made from the published split {homes[name]!r}, but the data has "
                f"{', '.join(sorted(have)) or 'none'}; set data.splits.{name}.split to one of these"
            )
    return homes


def wanted(splits: Mapping[Any, Any]) -> dict[str, str | None]:
    """The published split named by each entry of `data.splits`, None for a plain share."""
    return {name: getattr(entry, "split", None) for name, entry in splits.items()}


def share_of(entry: Any) -> float:
    """The share of an entry of `data.splits`."""
    return entry.share if hasattr(entry, "share") else entry


def patterns_of(card: str, config: str | None) -> dict[str, list[str]]:
    """Published split -> file patterns, from a card's `configs`; empty if it has none."""
    import yaml

    front = re.match(r"---\s*\n(.*?)\n---\s*(\n|$)", card, re.DOTALL)
    try:
        known = (yaml.safe_load(front[1]) or {}).get("configs") if front else None
    except (yaml.YAMLError, AttributeError):
        known = None
    configs = {
        str(one["config_name"]): one
        for one in known or ()
        if isinstance(one, Mapping) and one.get("config_name")
    }
    if not configs:
        return {}
    if config is None:
        config = next(
            (name for name, one in configs.items() if one.get("default") or name == "default"),
            next(iter(configs)) if len(configs) == 1 else None,
        )
    if config not in configs:
        raise SourceError(
            f"its card has the configurations {', '.join(configs)}; set `config` to one of them, got "
            f"{config or 'none'}{nearest(config, configs) if config else ''}"
        )
    given: Any = configs[config].get("data_files") or f"{configs[config].get('data_dir', config)}/**"
    if isinstance(given, str) or all(isinstance(one, str) for one in given):
        given = [{"split": "train", "path": given}]
    if not all(isinstance(one, Mapping) and {"split", "path"} <= set(one) for one in given):
        raise SourceError(
            f"its card is wrong: `data_files` of the configuration {config!r} must be paths, or objects with "
            f"`split` and `path`, got {str(given)[:120]}; correct the card, or name a folder or a file as "
            "the source"
        )
    return {
        str(one["split"]): [one["path"]] if isinstance(one["path"], str) else list(one["path"])
        for one in given
    }


def _of_card(path: Path, config: str | None) -> Files:
    card = path / CARD
    try:
        named = (
            patterns_of(card.read_text(encoding="utf-8", errors="replace"), config) if card.is_file() else {}
        )
    except SourceError as error:
        raise SourceError(f"{path}: {error}") from None
    every = data_files(path) if named else []
    return [
        (name, file)
        for name, patterns in named.items()
        for file in every
        if any(_fits(file.relative_to(path), one) for one in patterns)
    ]


def _fits(file: Path, pattern: str) -> bool:
    return fnmatchcase(file.as_posix(), pattern) or fnmatchcase(file.as_posix(), pattern.replace("**/", ""))


def _folder(path: Path, config: str | None) -> Path:
    if config is None or (path / config).is_dir():
        return path / (config or "")
    raise SourceError(
        f"{path} has no configuration {config!r}: neither in its {CARD} nor as a folder"
        f"{nearest(config, [p.name for p in path.iterdir() if p.is_dir()])}"
    )


def _name(file: Path) -> str:
    """Split name of a file: its own name without shard number, or its folder's; the file's if neither
    contains a split word.
    """
    own = SHARD.sub("", file.name.partition(".")[0])
    return next(
        (
            name
            for name in (own, *(SHARD.sub("", part) for part in reversed(file.parts[:-1])))
            if NAMED.search(name)
        ),
        own,
    )


def _chosen(path: Path, files: Files, splits: Mapping[Any, str | Sequence[str]]) -> Files:
    chosen: dict[Path, str] = {}
    for split, given in splits.items():
        for pattern in [given] if isinstance(given, str) else given:
            found = [
                file for name, file in files if name == pattern or _fits(file.relative_to(path), pattern)
            ]
            if not found:
                names = sorted({name for name, _ in files})
                raise DataError(
                    f"{path}: `splits.{split}` names {pattern!r}, which matches no split and no "
                    f"file{nearest(pattern, names)}"
                )
            for file in found:
                if chosen.setdefault(file, split) != split:
                    raise DataError(
                        f"{path}: `splits` puts {file.relative_to(path)} into both {chosen[file]} and "
                        f"{split}; each file may be in one split"
                    )
    return [(split, file) for file, split in chosen.items()]
