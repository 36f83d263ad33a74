"""The data of a recipe, checked before anything heavy is imported: its files are there, and each section reads a split of its kind that is made."""

from __future__ import annotations

from ratchet.components.errors import DataError, RecipeError, SourceError
from ratchet.components.piece import describe
from ratchet.components.schema import Recipe
from ratchet.components.sections import PAIRS, SHARES, SINGLE, kind_of


def check_files(recipe: Recipe) -> None:
    """Every `path:` of the recipe names something, and data the published splits that the recipe reads, or a `SourceError` says which does not."""
    from ratchet.components.data.published import home_of, published, wanted
    from ratchet.components.data.sources import local

    have: set[str] | None = set()
    places = {f"models.{name}.source": (model.source, None) for name, model in recipe.models.items()}
    places |= {f"models.{name}.base": (model.base, None) for name, model in recipe.models.items() if model.base}
    places |= {f"data.sources[{i}]" if recipe.data.sources else "data.source": (one.source, one) for i, one in enumerate(recipe.data.every_source)}
    for where, (address, data) in places.items():
        try:
            path = local(address) if address.startswith("path:") else None
            found = {split for split, _ in published(path, data.config, data.splits)} if path and data else {""} if address.startswith("generate:") else None
        except (SourceError, DataError) as error:
            raise type(error)(f"{where}: {error}") from None
        if data:
            have = have | found if have is not None and found is not None else None
    if have is not None and recipe.data.splits:
        have -= {"benchmark"}
        home_of(wanted(recipe.data.splits), have if have == {""} else {split or "train" for split in have})


def check_splits(recipe: Recipe) -> None:
    """Where the recipe says which splits there are, nothing may read another."""
    splits = recipe.data.splits
    for where, name in splits_read(recipe).items():
        if name not in (splits or SHARES):
            raise RecipeError(f"{where}: {name!r} is not among data.splits ({', '.join(splits or SHARES)}); give it a share there, or read another")


def splits_read(recipe: Recipe) -> dict[str, str]:
    """The splits of the data that sections read, by the key that names them."""
    made = recipe.demonstrate
    read = {f"{name}.{key}": getattr(section, key) for name in ("demonstrate", "preferences", "sft", "reward", "offline", "online", "evaluate")
            if (section := getattr(recipe, name)) and not (made and name in ("sft", "reward")) and not (recipe.preferences and name == "reward")
            if not (name == "offline" and makes_pairs(recipe) and section.data == "reward")
            for key in ("data", "validation") if hasattr(section, key)}
    if recipe.evaluate and recipe.evaluate.gold:
        read |= {"evaluate.gold": "gold", "evaluate.gold (its certificate)": "gold_validation"}
    return {where: name for where, name in read.items() if name}


def makes_pairs(recipe: Recipe) -> bool:
    """Whether a stage makes the preference pairs of the split `reward`, so that none are curated."""
    return bool(recipe.preferences or (recipe.demonstrate and recipe.demonstrate.reward))


def check_kinds(recipe: Recipe) -> None:
    """Each section learns from groups of its kind: SFT from answers to imitate, reward models from pairs, an objective from what it compares."""
    if recipe.sft and not recipe.demonstrate and (kind := kind_of(recipe.sft.data)) in (*PAIRS, *SINGLE):
        held = "rejected answers" if kind in PAIRS else "answers with label false"
        raise RecipeError(f"sft.data: {recipe.sft.data!r} holds {held} too, and SFT imitates every one; expected a split such as 'sft'")
    if recipe.reward and not (recipe.demonstrate or recipe.preferences) and kind_of(recipe.reward.data) not in PAIRS:
        raise RecipeError(f"reward.data: expected a split of preference pairs ({', '.join(PAIRS)}), got {recipe.reward.data!r}")
    section = recipe.offline
    for spec in [spec for parts in section.fit.updates.values() for spec in parts] if section else ():
        assert section is not None
        kind, description, at = kind_of(section.data), describe("objective", spec["name"]), "offline.fit.updates.policy"
        if description.unit == "pair" and (kind in SINGLE or (kind not in PAIRS and not section.select)):
            what = "single answers with a label" if kind in SINGLE else "no pairs"
            raise RecipeError(f"{at}: {spec['name']!r} compares a chosen with a rejected answer, and offline.data: {section.data!r} holds {what}; "
                              f"expected a split of pairs ({', '.join(PAIRS)})" + (", or the objective 'kto'" if kind in SINGLE else ""))
        if "label" in description.reads and kind in PAIRS:
            raise RecipeError(f"{at}: {spec['name']!r} learns from single answers with a label, and offline.data: {section.data!r} holds preference "
                              "pairs; expected the split 'labelled', or an objective on pairs such as 'preference.dpo'")
        if kind in SINGLE and not description.reads and "logprobs" in description.asks:
            raise RecipeError(f"{at}: {spec['name']!r} would imitate answers with label false; expected 'kto' alone on offline.data: {section.data!r}")
