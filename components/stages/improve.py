"""Stage `improve`: on-policy training steps in memory (rollout, annotate, select, train), as one stage with
many steps.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, final

from ratchet.components.data.groups import read_groups, write_groups
from ratchet.components.errors import DataError
from ratchet.components.inference.agreement import fresh
from ratchet.components.inference.choose import engine_of, live_engine
from ratchet.components.inference.torch import weights_digest
from ratchet.components.models.lora import AdapterDisabledReference
from ratchet.components.piece import build, models_of
from ratchet.components.stages.experience import context_of
from ratchet.components.stages.job import Job
from ratchet.components.stages.probe import agree, verify_saved, weights_precision
from ratchet.components.stages.train import make_learner
from ratchet.components.stages.watch import Health
from ratchet.components.storage.checkpoints import Log, latest, load_checkpoint, save_checkpoint
from ratchet.components.training import ranks
from ratchet.components.training.loop import (
    Named,
    annotate_groups,
    optimised_rewards,
    pieces,
    prepare_groups,
    round_metrics,
    select_groups,
    stateful_pieces,
    tokenised,
    without_failed,
)
from ratchet.components.training.objectives import parts
from ratchet.components.training.packing import order
from ratchet.components.training.postconditions import check_rollout, check_step_counts
from ratchet.components.training.trainer import memories, one_step, save_is_due
from ratchet.components.types import Context, Group


def improve(job: Job) -> dict[str, Any]:
    """`rounds` on-policy steps; each samples with the current weights and trains `epochs` passes over the
    selected groups.

    Resumes bit for bit from the last checkpoint: every random choice depends on (seed, step) and on the state
    of the pieces, which are built once and saved in the checkpoint.
    """
    options, profile, seed = job.options, job.options["profile"], job.options["seed"]
    prompts = [g.prompt for g in read_groups(job.path("data") / f"{options['data']}.parquet")]
    kind = "policy_with_value" if options["value_head"] else "policy"
    units = options["prompts_per_round"] * options["rounds"]
    learner = make_learner(job.path("policy"), kind, options["fit"], profile, units)
    updates = {role: parts(specs) for role, specs in options["fit"]["updates"].items()}
    learners = dict.fromkeys(updates, learner)
    choose, sample = build("prompts", options["prompts"]), build("rollout", options["rollout"])
    annotate, prepare = pieces("annotate", options["annotate"]), pieces("annotate", options["prepare"])
    select = pieces("select", options["select"])
    stateful = {
        **memories(updates),
        **stateful_pieces(
            prompts=[Named("choose", choose)],
            rollout=[Named("sample", sample)],
            annotate=annotate,
            select=select,
            prepare=prepare,
        ),
    }
    reference = None
    if options["reference"] != "initial":
        exact = {
            **profile,
            "engine": "torch",
            "precision": "float32",
        }  # reference updates (e.g. EMA) are smaller than half precision resolves
        start = engine_of(exact, job.path("reference"), kind)
        reference = stateful["reference"] = Reference(start, build("reference", options["reference"]))
    health = stateful["health"] = Health(options, learner)
    state: dict[str, Any] = {"step": 0, "updates": 0, "counts": {}, "held": 0}
    checkpoint = latest(job.work.progress)
    if checkpoint:
        state = load_checkpoint(checkpoint, learners, stateful)
    log = Log(job.work.metrics, after=state["step"])
    models = context_of(job).models
    engine, follow = live_engine(profile, learner, job.work.progress / "current", kind)
    live: dict[str, Any] = {"policy": engine, **({"reference": reference.engine} if reference else {})}
    if (
        reference is None
        and hasattr(learner.trained, "disable_adapter")
        and job.inputs["reference"].path == job.inputs["policy"].path
        and "reference" not in models_of(options["rollout"])
    ):
        live["reference"] = AdapterDisabledReference(
            learner, profile["tokens_per_microbatch"], weights_digest(job.path("reference"))
        )
    initial = (
        (models if reference else Overlay(models, live)).get("reference")
        if options["watch"].get("kl_prompts")
        else None
    )

    def metrics_of(groups: Sequence[Group], specs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Round metrics from rank 0, so that all ranks decide alike."""
        itself = not state["updates"] and job.inputs["policy"].digest == job.inputs["reference"].digest
        found = round_metrics(
            groups,
            specs,
            optimised=optimised_rewards(options["annotate"], options["select"]) if specs else (),
            reference=initial,
            kl_prompts=options["watch"].get("kl_prompts", 0),
            itself=itself,
        )
        return ranks.once(lambda: found)

    chosen: list[Group] = []
    saved = time.monotonic()
    while state["step"] < options["rounds"]:
        number = state["step"] + 1
        ctx = Context(models=Overlay(models, live), seed=seed, round=number)
        round_prompts = choose(
            prompts, count=options["prompts_per_round"], round=number, rounds=options["rounds"], seed=seed
        )
        groups = check_rollout(ranks.spread(round_prompts, lambda mine, ctx=ctx: sample(mine, ctx)), options)
        line = {"rollout/sampler_difference": agree(learner, fresh(groups), profile)}
        marked, counts = annotate_groups(groups, annotate, ctx, max_failed=options["max_failed"])
        if hasattr(choose, "update"):
            choose.update(marked)
        numbers = metrics_of(marked, options["annotate"])
        held = health(number, numbers, state)
        line |= {f"rollout/{k}": v for k, v in numbers.items()} | {"health/held": float(held)}
        chosen, selected = ([], {}) if held else select_groups(marked, select, ctx)
        chosen = prepare_groups(tokenised(chosen, learner.tokenizer), prepare, ctx)
        line["select/groups"] = float(len(chosen))
        line |= {f"rollout/{k}": float(v) for k, v in counts.items()} | {
            f"select/{k}": float(v) for k, v in selected.items()
        }
        state["counts"] = dict(Counter(state["counts"]) + Counter(counts) + Counter(selected))
        if chosen:
            batch = options["fit"]["batch"]
            for epoch in range(options["fit"]["epochs"]):
                indices = order(len(chosen), epoch, seed + number)
                for i in range(math.ceil(len(chosen) / batch)):
                    line |= one_step(
                        learners,
                        updates,
                        [chosen[j] for j in indices[i * batch : (i + 1) * batch]],
                        tokens=profile["tokens_per_microbatch"],
                    )
                    state["updates"] += 1
        if chosen or held:
            follow()
            if reference:
                reference.follow(engine)
        state["step"] = number
        log(line, number, options["rounds"])
        if number < options["rounds"] and save_is_due(options["fit"]["save_every"], number, saved):
            save_checkpoint(job.work.progress, state, learners, stateful)
            saved = time.monotonic()
    if not state["updates"] and not state["held"]:
        raise DataError(
            f"no group was selected in any of {state['step']} steps: usually all answers to each prompt "
            "have the "
            "same reward. Raise responses_per_prompt or the temperature, or use easier prompts"
        )
    check_step_counts(learners, state["step"], options["rounds"], state["updates"])
    ctx = Context(models=Overlay(models, live), seed=seed, round=state["step"] + 1)
    last, _ = without_failed(
        ranks.spread(round_prompts, lambda mine: sample(mine, ctx))
    )  # the final weights have not been sampled yet
    difference, numbers = agree(learner, fresh(last), profile), metrics_of(last, ())
    health(state["step"], numbers, state)
    learner.save(job.work.product)
    summary: dict[str, Any] = {
        "steps": state["step"],
        "updates": state["updates"],
        "counts": state["counts"],
        "held_steps": state["held"],
        **health.summary(),
        **log.last,
    }
    if chosen:
        ranks.once(lambda: write_groups(job.work.product / "last_groups.parquet", chosen))
    summary["probe"] = {"ended": 1 - numbers["truncated"], "sampler_difference": difference}
    summary["reload_difference"] = verify_saved(
        job.work.product,
        learner,
        last[:2],
        kind="policy",
        tokens=profile["tokens_per_microbatch"],
        precision=weights_precision(profile),
    )
    return summary


@final
class Reference:
    """A moving reference model, updated after each policy update (e.g. by an exponential moving average)."""

    def __init__(self, engine: Any, update: Callable[..., Mapping[str, Any]]) -> None:
        self.engine, self.update = engine, update

    def follow(self, policy: Any) -> None:
        self.engine.model.load_state_dict(
            self.update(self.engine.model.state_dict(), policy.model.state_dict())
        )

    def state(self) -> dict[str, Any]:
        return dict(self.engine.model.state_dict())

    def restore(self, state: Mapping[str, Any]) -> None:
        self.engine.model.load_state_dict(state)


class Overlay(Mapping[str, Any]):
    """Mapping with some names overridden; other names are looked up (and loaded) only on access."""

    def __init__(self, below: Mapping[str, Any], above: Mapping[str, Any]) -> None:
        self._below, self._above = below, above

    def __getitem__(self, name: str) -> Any:
        return self._above[name] if name in self._above else self._below[name]

    def __iter__(self):
        return iter({*self._below, *self._above})

    def __len__(self) -> int:
        return len({*self._below, *self._above})
