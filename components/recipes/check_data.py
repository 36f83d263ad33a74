"""Static checks of a recipe's data: files exist, and each section reads a split of the right kind."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from urllib.parse import parse_qsl

from ratchet.components.errors import DataError, RecipeError, SourceError, nearest
from ratchet.components.piece import describe
from ratchet.components.recipes.check_fit import objectives_of_labels, objectives_of_pairs
from ratchet.components.recipes.check_independent import prompts_seen
from ratchet.components.recipes.check_models import check_folder, check_model
from ratchet.components.recipes.check_records import Checked, check_records, unread
from ratchet.components.recipes.check_warnings import (
    gates_of_few,
    not_required_accuracy,
    unused_reward_models,
)
from ratchet.components.recipes.conform import known_keys
from ratchet.components.recipes.families import family_of, new_family
from ratchet.components.recipes.phases import sections
from ratchet.components.recipes.read_splits import read_splits, splits_read
from ratchet.components.recipes.schema import Groups, Learn, Recipe, Reward, Sft
from ratchet.components.recipes.sections import DataSource
from ratchet.components.recipes.splits import (
    PAIRS,
    SHARES,
    SINGLE,
    SPLIT_COLUMN,
    SPLITS,
    is_split,
    kind_of,
)
from ratchet.components.recipes.yaml_files import folder

TINY, TINY_VISION = ("seed", "steps", "hidden", "layers", "batch"), ("side", "patch", "width", "depth")
"""Options of `generate:tiny` and those that `generate:tiny_vision` adds."""


def check_files(recipe: Recipe, show: int = 0, warnings: Sequence[str] = ()) -> Checked:
    """Check every address in the recipe: `path:` models must be complete and fit the recipe's sizes, `path:`
    data must have the records and published splits it reads. Raises `SourceError`, `DataError`, `GateError`
    or `RecipeError` for the first problem. `show`: examples of each split of `path:` data in the result;
    `warnings`: further ones for the result.
    """
    checked = _checked(recipe, show)
    more = [
        *unused_reward_models(recipe),
        *not_required_accuracy(recipe),
        *gates_of_few(recipe),
        *prompts_seen(recipe),
        *warnings,
    ]
    return replace(checked, warnings=[*checked.warnings, *more])


def _checked(recipe: Recipe, show: int) -> Checked:
    from ratchet.components.data.published import home_of, one_split, share_of, wanted
    from ratchet.components.data.sources import check_address, local

    _check_models(recipe)
    have: set[str] | None = set()
    for i, source in enumerate(recipe.data.every_source):
        with _at(f"data.sources[{i}]" if recipe.data.sources else "data.source"):
            _check_hub(source.source, "datasets/")
            check_address(source.source)
            splits = _published_splits(source)
        have = have | splits if have is not None and splits is not None else None
    sources = recipe.data.every_source
    if all(one.source.startswith("path:") for one in sources) and one_split(
        sources, [local(one.source) for one in sources]
    ):
        have = {""}
    if have is not None and recipe.data.splits:
        have -= {"benchmark"}
        home_of(wanted(recipe.data.splits), have if have == {""} else {split or "train" for split in have})
    if all(source.source.startswith("path:") for source in recipe.data.every_source):
        return check_records(recipe, read_splits(recipe), show)
    shipped = "".join(file.read_text(encoding="utf-8") for file in folder().rglob("*.yaml"))
    if all(source.source in shipped for source in recipe.data.every_source):
        return (
            Checked()
        )  # recipes that are compared share the splits of their data, though not all of them read every split
    return Checked(
        unread(
            {name: share_of(share) for name, share in (recipe.data.splits or {}).items()},
            read_splits(recipe),
            "share {:g}",
        )
    )


def _check_hub(address: str, kind: str) -> None:
    """`SourceError` for a Hub repository without its scheme or its organisation. `kind`: prefix of its name
    in an address.
    """
    if re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", address):
        raise SourceError(
            f"{address!r} has no scheme; write 'hub:{kind}{address}' for a repository of the Hugging Face "
            f"Hub, or 'path:{address}' for a file or folder"
        )
    if short := re.fullmatch(r"hub:(datasets|models)/([\w.-]+)(@.*|!.*)?", address):
        raise SourceError(
            f"{address}: expected an organisation and a name, hub:{short[1]}/org/{short[2]}, got a name only"
        )


def _check_scheme(address: str) -> None:
    """`SourceError` for the address of a model that is a name only."""
    if not re.search("[:/]", address):
        raise SourceError(
            f"{address!r} is no address of a model; write 'hub:ORGANISATION/{address}' for a repository of "
            f"the Hugging Face Hub, 'path:{address}' for a folder, 'registry:{address}' for a model that a "
            "run registered, or 'generate:tiny' for a tiny model that is made here"
        )


def _check_models(recipe: Recipe) -> None:
    """Each model has a valid address; local ones are complete, and the policy fits the recipe's sizes."""
    from ratchet.components.data.sources import check_address, local
    from ratchet.components.stages.fetch import REGISTRY

    for name, model in recipe.models.items():
        if new_family(model.source, f"models.{name}.source"):
            if model.format != "new":
                raise RecipeError(
                    f"models.{name}.format: {model.source!r} is an untrained model of a family; expected "
                    f"`format: new`, got {model.format!r}"
                )
            continue
        tiny = re.fullmatch(r"generate:tiny(_vision)?(?:\?(.*))?", model.source)
        if (
            model.format == "new"
            or (model.format == "tiny") != bool(tiny)
            or (model.source.startswith("generate:") and not tiny)
        ):
            raise RecipeError(
                f"models.{name}.source: got {model.source!r} with `format: {model.format}`; `format: "
                "tiny` and an address such as "
                "generate:tiny?seed=0 go together, and `format: new` and one such as "
                "generate:gaussian?observation=3&action=1"
            )
        if tiny:
            sizes = _tiny_sizes(tiny[2] or "", (*TINY, *(TINY_VISION if tiny[1] else ())), model.source)
            config = {"num_hidden_layers": sizes.get("layers", 4), "max_position_embeddings": 1024}
            if name == "policy":
                check_model(recipe, config, model.source)
        for key, address in (("source", model.source), ("base", model.base)):
            if address and not address.startswith((REGISTRY, "generate:")):
                with _at(f"models.{name}.{key}"):
                    _check_scheme(address)
                    _check_hub(address, "")
                    check_address(address, REGISTRY.rstrip(":"))
                    if address.startswith("path:") and family_of(local(address)):
                        continue
                    config = (
                        check_folder(local(address), name, model, base=key == "base")
                        if address.startswith("path:")
                        else {}
                    )
                if name == "policy":
                    check_model(recipe, config, f"models.{name}.{key}")


def _tiny_sizes(query: str, known: Sequence[str], address: str) -> dict[str, int]:
    """Options of an address of the tiny model, which are whole numbers."""
    given = dict(parse_qsl(query, keep_blank_values=True))
    known_keys(given, known, address)
    for key, text in given.items():
        if not re.fullmatch("[0-9]+", text) or (key != "seed" and int(text) < 1):
            least = 0 if key == "seed" else 1
            raise RecipeError(f"{address}: expected a whole number of {least} or more as {key}, got {text!r}")
    return {key: int(text) for key, text in given.items()}


def _published_splits(source: DataSource) -> set[str] | None:
    """Published splits of a source; None if only the rows, or a download, show them."""
    from ratchet.components.data.generate import check_name, splits_of
    from ratchet.components.data.published import published
    from ratchet.components.data.sources import local

    if source.source.startswith("generate:"):
        testbed = source.source.removeprefix("generate:")
        check_name(testbed)
        return splits_of(testbed, source.columns.get(SPLIT_COLUMN))
    if source.source.startswith("path:") and SPLIT_COLUMN not in source.columns:
        return {
            split for split, _ in published(local(source.source), source.config, source.splits, alone=False)
        }
    return None


@contextlib.contextmanager
def _at(where: str) -> Iterator[None]:
    """Prefix errors with a path in the recipe."""
    try:
        yield
    except (SourceError, DataError) as error:
        raise type(error)(f"{where}: {error}") from None


def check_splits(recipe: Recipe) -> None:
    """Phases read splits that exist, or what earlier phases make; if the recipe lists its splits, no
    others.
    """
    splits = recipe.data.splits
    made = [name for phase in sections(recipe) if isinstance(phase.section, Groups) for name in phase.makes]
    for where, name in splits_read(recipe).items():
        if name in made:
            raise RecipeError(f"{where}: the phase that makes {name!r} comes later; move it before this one")
        if not is_split(name):
            raise RecipeError(
                f"{where}: {name!r} is neither a split nor what an earlier phase "
                f"makes{nearest(name, [*SPLITS, *made])}"
            )
        if name not in (splits or SHARES):
            raise RecipeError(
                f"{where}: {name!r} is not in data.splits ({', '.join(splits or SHARES)}); add it with a "
                "share, or use one of these"
            )


def check_kinds(recipe: Recipe) -> None:
    """Each phase reads groups of the right kind from the curated splits, to train and to validate on: SFT
    answers, reward-model pairs, and what each objective compares.
    """
    made: set[str] = set()
    for phase in sections(recipe):
        section, where = phase.section, phase.where
        keys = ("data", "also", "validation") if isinstance(section, Learn | Reward) else ()
        read = {f"{where}.{key}": getattr(section, key, None) for key in keys}
        for at, name in read.items():
            if not name or name in made:
                continue
            if isinstance(section, Reward) and kind_of(name) not in PAIRS:
                raise RecipeError(
                    f"{at}: expected a split of preference pairs ({', '.join(PAIRS)}), got {name!r}"
                )
            if isinstance(section, Sft) and kind_of(name) in (*PAIRS, *SINGLE):
                other = "rejected answers" if kind_of(name) in PAIRS else "answers with label false"
                raise RecipeError(
                    f"{at}: {name!r} also contains {other}, and SFT trains on all answers; use a "
                    "split such as 'sft'"
                )
            if isinstance(section, Learn) and not isinstance(section, Sft):
                _check_objectives(section, where, at, name)
        made |= set(phase.makes)


def _check_objectives(section: Learn, where: str, key: str, split: str) -> None:
    """The objectives read what a split has, which `key` names: pairs, or single answers with a label."""
    kind, at = kind_of(split), f"{where}.fit.updates.policy"
    for spec in [spec for parts in section.fit.updates.values() for spec in parts]:
        description = describe("objective", spec["name"])
        if description.unit == "pair" and (kind in SINGLE or (kind not in PAIRS and not section.select)):
            what = "single answers with a label" if kind in SINGLE else "no pairs"
            raise RecipeError(
                f"{at}: {spec['name']!r} compares a chosen with a rejected answer, but {key}: "
                f"{split!r} has {what}; "
                f"expected a split of pairs ({', '.join(PAIRS)})"
                + (
                    f", or an objective of labelled answers ({objectives_of_labels()})"
                    if kind in SINGLE
                    else ""
                )
            )
        if "label" in description.reads and kind in PAIRS:
            raise RecipeError(
                f"{at}: {spec['name']!r} needs single labelled answers, but {key}: "
                f"{split!r} has preference "
                f"pairs; use the split 'labelled', or a pairwise objective ({objectives_of_pairs()})"
            )
        if (
            kind in SINGLE
            and not description.reads
            and "logprobs" in description.outputs
            and "weight_column" not in spec
        ):
            raise RecipeError(
                f"{at}: {spec['name']!r} would train on answers with label false; use an objective "
                f"of labelled answers ({objectives_of_labels()}), or a `weight_column`, on "
                f"{key}: {split!r}"
            )
