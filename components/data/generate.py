"""Data sets that are generated: what an address `generate:name?key=value&...` of a recipe stands for.

The name is that of a testbed in `components/pieces/testbeds`, a piece: a function of keyword-only options
that yields rows, which are parsed as the rows of a file are (`components/data/parsing.py`). Or it is that of
a data set of the package `reasoning-gym` (`generate:chain_sum?size=500&seed=1&max_terms=3`), whose rows are
{id, prompt, answer, meta}; `meta` is the full entry, which the package's verifier needs.
"""

from __future__ import annotations

import importlib.util
import inspect
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from ratchet.components.errors import RecipeError, SourceError, nearest
from ratchet.components.piece import build, catalogue, resolve


def generate(request: str, folder: Path) -> Path:
    """Write the data set `name?key=value&...` to `folder/name.jsonl`, deterministically. `SourceError` for an
    unknown name or option.
    """
    name, options = _name_and_options(request)
    _check_options(request, name, options)
    try:
        rows = _rows(name, options)
        lines = [json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n" for row in rows]
    except (TypeError, ValueError, AssertionError) as error:
        why = (str(error).splitlines() or [f"{type(error).__name__} without a message; check the options"])[0]
        raise SourceError(f"generate:{request}: {why}") from error
    if not lines:
        raise SourceError(f"generate:{request}: no rows generated; set size to a positive number")
    path = folder / f"{name}.jsonl"
    path.write_text("".join(lines), encoding="utf-8")
    return path


def _rows(name: str, options: dict[str, Any]) -> Iterator[dict[str, Any]]:
    if name in catalogue("testbed"):
        return build("testbed", {"name": name, **options})()
    return _reasoning_rows(name)(**options)


def splits_of(request: str, column: str | None) -> set[str]:
    """Splits that the rows of `name?key=value` name in `column`; {""} without a column."""
    return {str(row.get(column) or "") for row in _rows(*_name_and_options(request))} if column else {""}


def check_name(request: str) -> None:
    """`SourceError` if `name?key=value&...` names no data set, or a testbed with wrong options."""
    name, options = _name_and_options(request)
    if name in catalogue("testbed"):
        _check_options(request, name, options)
    elif not _has_own_file(name):  # importing the package takes a second
        _reasoning_rows(name)


def _has_own_file(name: str) -> bool:
    """Whether a file of reasoning-gym has the name of a data set and states it; some data sets have none."""
    package = importlib.util.find_spec("reasoning_gym")
    if package is None or package.origin is None or not name.isidentifier():
        return False
    files = Path(package.origin).parent.rglob(f"{name}.py")
    return any(f'DATASET_NAME = "{name}"' in file.read_text(encoding="utf-8") for file in files)


def _name_and_options(request: str) -> tuple[str, dict[str, Any]]:
    name, _, query = request.partition("?")
    return name, {key: _value(text) for key, text in parse_qsl(query, keep_blank_values=True)}


def _check_options(request: str, name: str, options: dict[str, Any]) -> None:
    testbeds = catalogue("testbed")
    known = [*testbeds[name].options] if name in testbeds else _reasoning_options(name)
    for key in options:
        if key not in known:
            raise SourceError(f"generate:{request}: {name} has no option {key!r}{nearest(key, known)}")
    if name in testbeds:
        try:
            resolve("testbed", {"name": name, **options}, where=f"generate:{name}")
        except RecipeError as error:
            raise SourceError(str(error)) from None


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _reasoning_rows(name: str) -> Callable[..., Iterator[dict[str, Any]]]:
    from reasoning_gym.factory import DATASETS, create_dataset

    if name not in DATASETS:
        raise SourceError(
            f"generate:{name}: no such data set{nearest(name, [*DATASETS, *catalogue('testbed')])}"
        )

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


def _reasoning_options(name: str) -> list[str]:
    from reasoning_gym.factory import DATASETS

    _reasoning_rows(name)
    return list(inspect.signature(DATASETS[name][1]).parameters)
