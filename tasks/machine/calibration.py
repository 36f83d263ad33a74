"""Inputs of estimates: model dimensions, data size, and this machine's measured throughput.

`<home>/calibration.json` caches throughput by devices, package versions, model, profile and code.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ratchet.components.errors import RecipeError, StageError
from ratchet.components.estimates.capacity import check_capacity
from ratchet.components.estimates.cost import Cost
from ratchet.components.estimates.costs import estimate
from ratchet.components.estimates.observed import Observed
from ratchet.components.estimates.rates import Rates, adapters, stated_rates
from ratchet.components.estimates.shape import Shape, read_shape, shape_of, tiny_shape
from ratchet.components.estimates.split import Split
from ratchet.components.inference.choose import SAMPLE
from ratchet.components.recipes.phases import sections
from ratchet.components.recipes.plain_values import plain
from ratchet.components.recipes.plan import source_digest
from ratchet.components.recipes.profile import Hardware, Profile
from ratchet.components.recipes.schema import Learn, Online, Reward
from ratchet.components.storage.store import digest, write_atomic
from ratchet.tasks.machine.checks import existing
from ratchet.tasks.machine.provenance import machine, packages
from ratchet.tasks.machine.system import gpu_names
from ratchet.tasks.process.child import PRELOAD
from ratchet.tasks.process.launch import ENVIRONMENT
from ratchet.tasks.tracking.outcome import run_files

if TYPE_CHECKING:
    from ratchet.components.recipes.plan import Stage
    from ratchet.components.types import Artifact
    from ratchet.tasks.pipeline import Pipeline

PACKAGE = Path(__file__).parents[2]
MEASURE = PACKAGE / "components" / "estimates" / "measure.py"


def costs_of(pipeline: Pipeline, *, measured: bool) -> tuple[list[Cost], Rates | None, Shape]:
    """The estimate of a run, the throughput used, and the model's dimensions. With `measured`, this machine
    is benchmarked if needed and if it matches the profile's hardware. `RecipeError` if the dimensions are
    unknown.
    """
    shape, folder = model_shape(pipeline)
    curated = pipeline.store.get("curated", pipeline.stages["curated"].key)
    splits = sizes_of(curated) if curated else {}
    recipe, profile = pipeline.recipe, pipeline.profile
    length = typical_length(pipeline, splits)
    rates = stated_rates(recipe, profile, shape, length=length)
    why = why_not_measured(profile, devices()) if rates else ""
    why = why if folder else "the model is not fetched yet"
    if measured and folder and not why:
        rates = machine_rates(pipeline, folder, round(length))
    elif rates is not None:
        rates = replace(rates, source=why or "not asked")
    costs = estimate(recipe, profile, pipeline.stages, shape, splits, rates, observed(pipeline))
    return costs, rates, shape


def with_cache(pipeline: Pipeline, stage: Stage) -> Mapping[str, Any]:
    """The options of a stage; one that samples with a vLLM which is started for it has `vllm.cache_gb`, from
    the estimate of the stage where the profile says null. `RecipeError` if the stage does not fit on the
    device. Models whose dimensions cannot be read keep null, which is vLLM's default.
    """
    profile, options = pipeline.profile, stage.options
    vllm = profile.vllm
    if profile.engine != "vllm" or vllm.server or vllm.cache_gb is not None or stage.does not in SAMPLE:
        return options
    try:
        costs, _, _ = costs_of(pipeline, measured=False)
    except RecipeError:
        return options
    (cost,) = [cost for cost in costs if cost.stage.name == stage.name]
    if "KV cache" not in cost.memory:
        return options
    check_capacity(profile, [cost], this_machine(pipeline.store.home))
    given = options["profile"]
    sized = {**given["vllm"], "cache_gb": cost.memory["KV cache"] / 2**30}
    return {**options, "profile": {**given, "vllm": sized}}


def why_not_measured(profile: Profile, here: Sequence[str]) -> str:
    """Why a profile's hardware cannot be measured on the devices `here`; empty if it can."""
    stated = profile.hardware
    words = set(stated.device.lower().split())
    found = sum(words <= set(name.lower().split()) for name in here)
    if found < stated.devices and stated.device != Hardware.device:
        return f"this machine has {found} of {stated.devices} × {stated.device}"
    return f"one process is measured, not {profile.ranks} ranks" if profile.ranks > 1 else ""


def devices() -> list[str]:
    """Names of this machine's CPU and GPUs."""
    return [machine(), *gpu_names()]


def model_shape(pipeline: Pipeline) -> tuple[Shape, Path | None]:
    """Dimensions of the model: from its files if present, else from the recipe's `shape`; those of the tiny
    model are known.
    """
    source = pipeline.recipe.models["policy"]
    made = pipeline.store.get("model_policy", pipeline.stages["model_policy"].key)
    if made is not None:
        return shape_of(made.path), made.path
    if source.shape:
        return read_shape(source.shape, "models.policy.shape"), None
    if source.format == "tiny":
        return tiny_shape(source.source), None
    local = Path(source.source.removeprefix("path:"))
    if source.source.startswith("path:") and (local / "config.json").is_file():
        return shape_of(local), local
    raise RecipeError(
        f"the size of models.policy ({source.source}) is unknown before the download: run `ratchet run "
        f"{pipeline.given or pipeline.recipe.name} --until curate`, or set models.policy.shape "
        "to the sizes in its config.json"
    )


def sizes_of(made: Artifact) -> dict[str, Split]:
    """Number of groups, mean and most tokens of each data set that a stage made; none if it made no data."""
    from ratchet.components.data.parquet import read_parquet

    if not (made.path / "statistics.parquet").exists():
        return {}
    sizes: dict[str, list[int]] = {}
    for row in read_parquet(made.path / "statistics.parquet"):
        sizes.setdefault(row["split"], []).append(row["tokens"])
    return {name: Split(len(n), sum(n) / len(n), max(n)) for name, n in sizes.items()}


def observed(pipeline: Pipeline) -> Observed:
    """What the newest runs of the recipe in this home sampled and kept; the pipeline's own stages count
    first.
    """
    store, own = pipeline.store, {name: stage.key for name, stage in pipeline.stages.items()}
    runs = {"": own} | {
        run["run"]: run["stages"]
        for file in reversed(run_files(store.home))
        if (run := json.loads(file.read_text()))["recipe"] == pipeline.recipe.name
    }
    found: dict[str, Artifact] = {}
    used = ""
    for run, keys in runs.items():
        for name in (own.keys() & keys.keys()) - found.keys() - {"curated"}:
            if (made := store.get(name, keys[name])) is not None:
                found[name], used = made, used or run
    data = {name: sizes for name, made in found.items() if (sizes := sizes_of(made))}
    return Observed.of({name: made.meta for name, made in found.items()}, data, used)


def typical_length(pipeline: Pipeline, splits: Mapping[str, Split]) -> float:
    """Typical length in tokens of a training text; without training, of an evaluated prompt and answer."""
    trained = [one.section for one in sections(pipeline.recipe) if hasattr(one.section, "fit")]
    online = next((section for section in trained if isinstance(section, Online)), None)
    if online:
        longest = online.rollout.get("max_tokens", 128)
        return longest + (splits[online.data].tokens if online.data in splits else longest)
    section = next((section for section in trained if isinstance(section, Learn | Reward)), None)
    if section is None:  # trains nothing
        evaluation = pipeline.recipe.evaluate
        return 2.0 * (evaluation.max_tokens if evaluation else 128)
    most = float(section.max_tokens)
    return min(most, splits[section.data].tokens) if section.data in splits else most


def machine_rates(pipeline: Pipeline, model: Path, length: int) -> Rates:
    """This machine's throughput for the model and profile: cached in `calibration.json`, or measured now."""
    recipe = pipeline.recipe
    online = next((one.section for one in sections(recipe) if isinstance(one.section, Online)), None)
    profile = {k: v for k, v in plain(pipeline.profile).items() if k != "hardware"}
    ask: dict[str, Any] = {
        "model": str(model),
        "profile": profile,
        "adapters": plain(adapters(recipe)),
        "length": max(8, length),
        "prompt": max(4, length // 2),
        "each": online.rollout.get("responses_per_prompt", 1) if online else 1,
        "imports": PRELOAD,
    }
    code = [source_digest(does, {}) for does in ("optimise", "rollout")] + [digest(MEASURE.read_text())]
    about = {**ask, "model": digest(plain(recipe.models["policy"]))}
    key = digest([*devices(), os.cpu_count(), packages(), code, about])
    file = pipeline.store.home / "calibration.json"
    kept = json.loads(file.read_text()) if file.exists() else {}
    if key not in kept:
        source = recipe.models["policy"].source
        kept[key] = {**_measured(ask), "machine": machine(), "model": source}
        write_atomic(file, json.dumps(kept, indent=1))
    found = kept[key]
    return Rates(found["learn"], found["update"], found["score"], found["sample"], found["load"], "measured")


def _measured(ask: Mapping[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        request, answer = Path(folder) / "request.json", Path(folder) / "answer.json"
        request.write_text(json.dumps(ask))
        path = os.pathsep.join(filter(None, [str(PACKAGE.parent), os.environ.get("PYTHONPATH")]))
        done = subprocess.run(
            [sys.executable, "-m", "ratchet.components.estimates.measure", str(request), str(answer)],
            env={**ENVIRONMENT, **os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        found = json.loads(answer.read_text()) if answer.exists() else {}
    if done.returncode:
        why = (done.stderr.strip().splitlines() or [f"it was ended by signal {-done.returncode}"])[-1]
        raise StageError(f"the benchmark of this machine failed with {ask['model']}: {why}")
    rates = (
        found["score"],
        found["sample"],
        found["load"],
        *found["learn"].values(),
        *found["update"].values(),
    )
    if not all(math.isfinite(rate) and rate > 0 for rate in rates):
        raise StageError(f"the benchmark of this machine returned {found}; expected positive numbers")
    return found


def this_machine(home: Path) -> tuple[float, float]:
    """Bytes of memory (limited by the container) and of free disk."""
    memory = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.is_file() and (text := limit.read_text().strip()).isdigit():
        memory = min(memory, float(text))
    return memory, float(shutil.disk_usage(existing(home)).free)
