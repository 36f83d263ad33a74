"""The public Python API (`import ratchet`). pandas, torch and Prefect are imported lazily.

Every error is a `RatchetError` with the message that the command line prints.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from ratchet.components.errors import RatchetError, RecipeError, ServiceError, redacted
from ratchet.components.recipes.profile import Profile
from ratchet.components.recipes.recipe import dump, inherited_sizes, load
from ratchet.components.recipes.schema import Recipe as ResolvedRecipe
from ratchet.flows.commands.options import Until
from ratchet.flows.reading import Run
from ratchet.tasks.process.locks import IfRunning
from ratchet.tasks.tracking.outcome import find_run, run_files


@dataclass(frozen=True)
class Recipe:
    """A recipe with its base merged in and every default filled in, as `load_recipe` returns it.

    `resolved` has one typed attribute a section (`recipe.resolved.online.rounds`), None for a section that
    the recipe does not have; `profile` is the hardware profile. `str(recipe)` is YAML, as `ratchet recipes
    explain` prints it.
    """

    resolved: ResolvedRecipe
    profile: Profile
    source: str | Path
    overrides: tuple[str, ...] = ()
    profile_name: str | None = None
    limit: int | None = None

    @property
    def name(self) -> str:
        """`name` in the file, otherwise the file's name."""
        return self.resolved.name

    def check(self, *, home: str | Path = "out") -> list[str]:
        """Check that the files and registered models which the recipe names exist and are complete, and that
        local data fill the splits it reads. Returns warnings, such as splits that no section reads. Keys,
        types, ranges, pieces and columns were checked when it was loaded. Takes seconds, imports no torch,
        starts nothing.

        Raises `RecipeError`, `SourceError`, `DataError` or `GateError`.
        """
        from ratchet.components.recipes.check_data import check_files
        from ratchet.tasks.registry.registry_sources import resolved

        with one_sentence():
            checked = check_files(self.resolved, warnings=inherited_sizes(self.source, self.overrides))
            resolved(self.resolved, self.profile, Path(home))
        return list(checked.warnings)

    def __str__(self) -> str:
        return dump(self.resolved, self.profile)

    def __repr__(self) -> str:
        return f"Recipe({self.name!r}, profile={self.profile.name!r})"


def load_recipe(
    recipe: str | Path,
    *,
    set: Mapping[str, object] | Sequence[str] = (),
    profile: str | None = None,
    limit: int | None = None,
) -> Recipe:
    """Load a recipe by the name of one that ships, or from a YAML file.

    `set` overrides keys: `{"online.rounds": 2}`, or strings as on the command line, `["online.rounds=2"]`.
    `profile` names the hardware profile (`cpu`, `gpu`, …) or a YAML file; None: the recipe's own. `limit`
    makes it a smoke test: at most so many rows of each split.

    Raises `RecipeError` for an unknown recipe, key or piece, a value out of range, or a column that nothing
    writes.
    """
    overrides = (
        tuple(f"{key}={_in_json(key, value)}" for key, value in set.items())
        if isinstance(set, Mapping)
        else tuple(set)
    )
    resolved, hardware = load(recipe, overrides=overrides, profile=profile, limit=limit)
    return Recipe(resolved, hardware, recipe, overrides, profile, limit)


def _in_json(key: str, value: object) -> str:
    """A value of `set` as JSON, which is YAML; a `Path` is its text."""
    try:
        return json.dumps(value, default=os.fspath, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        raise RecipeError(
            f"set[{key!r}]: expected numbers, texts, lists and mappings, got {type(value).__name__}"
        ) from None


def run(
    recipe: Recipe | str | Path,
    *,
    home: str | Path = "out",
    until: Until = "register",
    if_running: IfRunning = "wait",
    progress: bool = True,
) -> Run:
    """Run a recipe to its end, or to the stage `until`: "curate", "train", "evaluate" or "register".

    Finished stages are reused from the store under `home`; an interrupted run continues from its last
    checkpoint. `if_running` says what to do while another process makes the same run: "wait" or "refuse".
    `progress` prints one line an event and a table of the stages. Prefect's own server is started unless
    PREFECT_API_URL names one, and ends with this process.

    Raises `RatchetError` (see `ratchet.components.errors` for its kinds) when a stage fails; finished work is
    kept, and the same call continues. The failed run, with its log, is `ratchet.load_run(home=home)`.
    """
    from ratchet.components.recipes.check_data import check_files
    from ratchet.flows.display import open_console
    from ratchet.flows.running import execute, finished
    from ratchet.tasks.pipeline import Pipeline

    one, home = recipe if isinstance(recipe, Recipe) else load_recipe(recipe), Path(home)
    options = {"overrides": one.overrides, "profile": one.profile_name, "limit": one.limit}
    with one_sentence():
        pipeline = Pipeline.open(one.source, home=home, **options)
        checked = check_files(pipeline.recipe, warnings=inherited_sizes(one.source, one.overrides))
        if not finished(pipeline, until):
            execute(
                pipeline,
                open_console(quiet=not progress),
                checked.warnings,
                until=until,
                if_running=if_running,
                **options,
            )
    return Run(pipeline.run.path)


def load_run(name: str | None = None, *, home: str | Path = "out") -> Run:
    """A run under `home` by its name, or by the path of its directory; the newest without a name. Raises
    `RecipeError` if there is none.
    """
    return Run(find_run(name, Path(home)))


def runs(home: str | Path = "out") -> list[Run]:
    """Every run under `home`, the newest first."""
    return [Run(file.parent) for file in reversed(run_files(Path(home)))]


class one_sentence:
    """Context manager that re-raises a `RatchetError` without the traceback and causes inside Prefect; a full
    disk or an unreachable server becomes a `ServiceError`. (A class, because contextlib would restore the
    traceback.)
    """

    def __enter__(self) -> None:
        return None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, frames: TracebackType | None
    ) -> None:
        from ratchet.flows.running import environment_error

        if isinstance(error, RatchetError):
            raise error.with_traceback(None) from None
        if isinstance(error, Exception) and (why := environment_error(error)) is not None:
            raise ServiceError(f"{redacted(why)}; finished work is kept, the same call resumes") from None
