"""Inputs of estimates: model dimensions, data size, and this machine's measured throughput.

`<home>/calibration.json` caches throughput, by a digest of all that it depends on: devices and number of
CPUs, package versions, the model's source, the profile without its hardware, adapters, lengths of texts,
answers to a prompt, and the code.
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
from ratchet.components.estimates.sizes import MAX_TOKENS
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
    """The costs of the stages of a run, the throughput used (None: neither measured nor stated), and the
    model's dimensions. With `measured`, throughput is that of this machine, benchmarked if it is not in the
    cache, unless the profile states figures of other hardware or the model is not fetched yet. `RecipeError`
    if the dimensions are unknown, `StageError` if the benchmark fails.
    """
    shape, folder = model_shape(pipeline)
    curated = pipeline.store.get("curated", pipeline.stages["curated"].key)
    splits = sizes_of(curated) if curated else {}
    recipe, profile = pipeline.recipe, pipeline.profile
    length = typical_length(pipeline, splits)
    rates = stated_rates(recipe, profile, shape, length=length)
    why = _why_stated(profile, folder, stated=rates is not None, measured=measured)
    if folder and not why:
        rates = machine_rates(pipeline, folder, round(length))
    elif rates is not None:
        rates = replace(rates, source=why)
    costs = estimate(recipe, profile, pipeline.stages, shape, splits, rates, observed(pipeline))
    return costs, rates, shape


def with_kv_cache_size(pipeline: Pipeline, stage: Stage) -> Mapping[str, Any]:
    """The options of a stage. If it samples with a vLLM that is started for it and the profile's
    `vllm.cache_gb` is null, they have the size of the KV cache in the stage's estimate, in GiB. `RecipeError`
    if the stage does not fit on the device. Models whose dimensions cannot be read keep null, which is vLLM's
    default.
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
    check_capacity(profile, [cost], memory_and_free_disk(pipeline.store.home))
    given = options["profile"]
    sized = {**given["vllm"], "cache_gb": cost.memory["KV cache"] / 2**30}
    return {**options, "profile": {**given, "vllm": sized}}


def why_not_measured(profile: Profile, here: Sequence[str]) -> str:
    """Why a profile's hardware cannot be measured on the devices `here`; empty if it can."""
    stated = profile.hardware
    words = set(stated.device.lower().split())
    found = sum(words <= set(name.lower().split()) for name in here)
    if found < stated.devices and stated.device != Hardware.device:
        return f"the profile states {stated.devices} × {stated.device}, and this machine has {found}"
    return f"the profile has {profile.ranks} ranks, and one process is measured" if profile.ranks > 1 else ""


def _why_stated(profile: Profile, folder: Path | None, *, stated: bool, measured: bool) -> str:
    """Why throughput is not measured; empty if it is. `folder`: that of the model, if it is fetched.
    `stated`: whether the profile has figures to compute it from; `measured`: whether a measurement is wanted.
    """
    if not measured:
        return "no measurement was asked for"
    if folder is None:
        return "the model is not fetched yet"
    return why_not_measured(profile, devices()) if stated else ""


def devices() -> list[str]:
    """Names of this machine's CPU and GPUs."""
    return [machine(), *gpu_names()]


def model_shape(pipeline: Pipeline) -> tuple[Shape, Path | None]:
    """Dimensions of the policy, and its folder (None: not fetched yet). They are read from the first of these
    that there is: the files that the stage model_policy fetched, the recipe's `shape`, the address of a tiny
    model, the config.json of a local model. `RecipeError` if there is none.
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
    """What finished stages of the recipe's runs in this home sampled and kept: by stage name that of the
    pipeline's own stage, else of the newest run that has one.
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
    """Typical tokens of a text that a recipe trains on: in an online phase a prompt of mean length (`splits`)
    with the longest answer, else a text of the data, at most `max_tokens`. Without training, of a prompt and
    an answer of the evaluation.
    """
    trained = [one.section for one in sections(pipeline.recipe) if hasattr(one.section, "fit")]
    online = next((section for section in trained if isinstance(section, Online)), None)
    if online:
        longest = online.rollout.get("max_tokens", MAX_TOKENS)
        return longest + (splits[online.data].tokens if online.data in splits else longest)
    section = next((section for section in trained if isinstance(section, Learn | Reward)), None)
    if section is None:  # trains nothing
        evaluation = pipeline.recipe.evaluate
        return 2.0 * (evaluation.max_tokens if evaluation else MAX_TOKENS)
    most = float(section.max_tokens)
    return min(most, splits[section.data].tokens) if section.data in splits else most


def machine_rates(pipeline: Pipeline, model: Path, length: int) -> Rates:
    """This machine's throughput for the model and profile: cached in `calibration.json`, or measured now."""
    recipe = pipeline.recipe
    online = next((one.section for one in sections(recipe) if isinstance(one.section, Online)), None)
    profile = {k: v for k, v in plain(pipeline.profile).items() if k != "hardware"}
    request: dict[str, Any] = {
        "model": str(model),
        "profile": profile,
        "adapters": plain(adapters(recipe)),
        "length": max(8, length),
        "prompt": max(4, length // 2),
        "each": online.rollout.get("responses_per_prompt", 1) if online else 1,
        "imports": PRELOAD,
    }
    code = [source_digest(does, {}) for does in ("optimise", "rollout")] + [digest(MEASURE.read_text())]
    request_key = {**request, "model": digest(plain(recipe.models["policy"]))}
    key = digest([*devices(), os.cpu_count(), packages(), code, request_key])
    file = pipeline.store.home / "calibration.json"
    cache = _read_cache(file)
    if key not in cache:
        source = recipe.models["policy"].source
        cache[key] = {**_measured(request), "machine": machine(), "model": source}
        write_atomic(file, json.dumps(cache, indent=1))
    result = cache[key]
    rates = {name: result[name] for name in ("learn", "update", "score", "sample", "load")}
    return Rates(**rates, source="measured")


def _read_cache(file: Path) -> dict[str, Any]:
    """The measurements in a file; none if it is missing or damaged, so that they are repeated."""
    try:
        cache = json.loads(file.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return cache if isinstance(cache, dict) else {}


def _measured(request: Mapping[str, Any]) -> dict[str, Any]:
    """Throughput as `components/estimates/measure.py` returns it, in a process of its own. `StageError` if
    that fails or returns no positive numbers.
    """
    failed = f"the benchmark of this machine failed with {request['model']}"
    with tempfile.TemporaryDirectory() as folder:
        asked, answer = Path(folder) / "request.json", Path(folder) / "answer.json"
        asked.write_text(json.dumps(request))
        path = os.pathsep.join(filter(None, [str(PACKAGE.parent), os.environ.get("PYTHONPATH")]))
        done = subprocess.run(
            [sys.executable, "-m", "ratchet.components.estimates.measure", str(asked), str(answer)],
            env={**ENVIRONMENT, **os.environ, "PYTHONPATH": path},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            code = done.returncode
            ended = f"it was ended by signal {-code}" if code < 0 else f"it ended with exit code {code}"
            raise StageError(f"{failed}: {(done.stderr.strip().splitlines() or [ended])[-1]}")
        try:
            result = json.loads(answer.read_text())
            rates = [result["score"], result["sample"], result["load"]]
            rates += [*result["learn"].values(), *result["update"].values()]
        except (OSError, ValueError, KeyError) as error:
            raise StageError(f"{failed}: it ended without a whole answer ({error!r})") from error
    if not all(math.isfinite(rate) and rate > 0 for rate in rates):
        raise StageError(f"the benchmark of this machine returned {result}; expected positive numbers")
    return result


def memory_and_free_disk(home: Path) -> tuple[float, float]:
    """This machine's bytes of memory, or of the container's limit, and of free disk where `home` is."""
    memory = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.is_file() and (text := limit.read_text().strip()).isdigit():
        memory = min(memory, float(text))
    return memory, float(shutil.disk_usage(existing(home)).free)
