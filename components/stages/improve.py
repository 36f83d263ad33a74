"""Stage `improve`: on-policy steps in memory, each a round of `components/training/rounds.py`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, final

from ratchet.components.data.groups import read_groups, write_groups
from ratchet.components.errors import DataError
from ratchet.components.inference.agreement import fresh
from ratchet.components.inference.choose import engine_of
from ratchet.components.inference.live import live_engine
from ratchet.components.inference.torch import weights_digest
from ratchet.components.models.lora import AdapterDisabledReference
from ratchet.components.piece import build, models_of
from ratchet.components.protocols import Memory
from ratchet.components.stages.experience import context_of
from ratchet.components.stages.job import Job
from ratchet.components.stages.overlay import Overlay
from ratchet.components.stages.probe import agree, verify_saved, weights_precision
from ratchet.components.stages.train import make_learner
from ratchet.components.stages.watch import Health
from ratchet.components.storage.checkpoints import Log, latest, load_checkpoint, save_checkpoint
from ratchet.components.training import ranks
from ratchet.components.training.deepspeed import DeepSpeedLearner
from ratchet.components.training.loop import pieces, prepare_groups, without_failed
from ratchet.components.training.objectives import memories, parts
from ratchet.components.training.postconditions import check_step_counts
from ratchet.components.training.reward_columns import optimised_rewards
from ratchet.components.training.roles import Follower, Role
from ratchet.components.training.round_metrics import round_metrics
from ratchet.components.training.rounds import Pieces, Round, one_round, sample, update
from ratchet.components.training.steps import save_is_due
from ratchet.components.training.torch import TorchLearner
from ratchet.components.types import Context, Group

ROLES = "roles"
"""Folder of the product with the models of further roles."""


def improve(job: Job) -> dict[str, Any]:
    """`rounds` on-policy steps; each samples with the current weights and trains `epochs` passes over the
    selected groups.

    Resumes bit for bit from the last checkpoint: every random choice depends on (seed, step) and on the state
    of the pieces, which are built once and saved in the checkpoint.
    """
    run = Steps(job)
    prompts = [g.prompt for g in read_groups(job.path("data") / f"{job.options['data']}.parquet")]
    rounds, every = job.options["rounds"], job.options["fit"]["save_every"]
    log, saved = Log(job.work.metrics, after=run.state["step"]), time.monotonic()
    this: Round | None = None
    while run.state["step"] < rounds:
        number = run.state["step"] + 1
        this = run.round(prompts, number)
        log(this.line, number, rounds)
        if number < rounds and save_is_due(every, number, saved):
            save_checkpoint(job.work.progress, run.state, run.learners, run.stateful)
            saved = time.monotonic()
    if not run.state["updates"] and not run.state["rolled_back"]:
        raise DataError(
            f"no group was selected in any of {run.state['step']} steps: usually all answers to each prompt "
            "have the "
            "same reward. Raise responses_per_prompt or the temperature, or use easier prompts"
        )
    check_step_counts({"policy": run.learner}, run.state["step"], rounds, run.state["updates"])
    for role in run.roles:
        check_step_counts(
            {role.name: role.learner}, run.state["step"], rounds, run.state["role_updates"][role.name]
        )
    assert this is not None
    return {**run.finish(this), **log.last}


@final
class Steps:
    """The models, pieces and state of the stage: `learners` by role, `stateful` everything else that a
    checkpoint keeps, `state` the counters.
    """

    def __init__(self, job: Job) -> None:
        self.job, self.options = job, job.options
        self.profile: Mapping[str, Any] = job.options["profile"]
        options = job.options
        kind = _kind(options)
        self.learner = _learner(job, "policy", options)
        self.objectives = {role: parts(specs) for role, specs in options["fit"]["updates"].items()}
        self.built, self.fresh = Pieces(options), pieces("annotate", options["fresh"])
        self.models = context_of(job).models
        self.engine, self.refresh = live_engine(
            self.profile, self.learner, job.work.progress / "current", kind
        )
        self.reference = self._reference(kind)
        self.roles = [_role(job, name, section) for name, section in options["roles"].items()]
        self.live = self._live()
        self.learners = {
            **dict.fromkeys(self.objectives, self.learner),
            **{role.name: role.learner for role in self.roles},
        }
        following: dict[str, Memory] = {"reference": self.reference} if self.reference else {}
        self.health = Health(
            options,
            {"policy": self.learner, **memories(self.objectives), **following}
            | {name: memory for role in self.roles for name, memory in role.learned.items()},
        )
        self.stateful: dict[str, Memory] = {
            **memories(self.objectives),
            **self.built.memories,
            **{name: memory for role in self.roles for name, memory in role.memories.items()},
            **following,
            "health": self.health,
        }
        self.state: dict[str, Any] = {
            "step": 0,
            "updates": 0,
            "counts": {},
            "rolled_back": 0,
            "role_updates": {role.name: 0 for role in self.roles},
        }
        if checkpoint := latest(job.work.progress):
            self.state = load_checkpoint(checkpoint, self.learners, self.stateful)
            self._follow()

    def _reference(self, kind: Any) -> Follower | None:
        """The moving reference; None if the reference is the policy before the first step."""
        if self.options["reference"] == "initial":
            return None
        start = engine_of(_exact(self.profile), self.job.path("reference"), kind)
        return Follower(start, build("reference", self.options["reference"]))

    def _live(self) -> dict[str, Any]:
        """Engines whose weights change, and the reference of an adapter, by their names in pieces."""
        live: dict[str, Any] = {"policy": self.engine}
        for role in self.roles:
            live |= role.models
        if self.reference:
            live["reference"] = self.reference.engine
        elif hasattr(self.learner.trained, "disable_adapter") and "reference" not in models_of(
            self.options["rollout"]
        ):
            tokens, base = self.profile["tokens_per_microbatch"], weights_digest(self.job.path("reference"))
            live["reference"] = AdapterDisabledReference(
                self.learner, tokens, base, lambda: self.models["reference"]
            )
        return live

    def _follow(self) -> None:
        """Show the learners' weights to the pieces."""
        self.refresh()
        for role in self.roles:
            role.refresh()

    def context(self, number: int) -> Context:
        return Context(models=Overlay(self.models, self.live), seed=self.options["seed"], round=number)

    def round(self, prompts: Sequence[Any], number: int) -> Round:
        """One on-policy step."""
        this = one_round(
            prompts,
            self.built,
            self.options,
            self.context(number),
            tokenizer=self.learner.tokenizer,
            check_sampled=lambda groups: {
                "rollout/sampler_difference": agree(self.learner, fresh(groups), self.profile)
            },
            check_scored=lambda groups: self._check(groups, number),
            learn_roles=self._learn_roles,
            learn=self._learn,
        )
        self.state["counts"] = dict(Counter(self.state["counts"]) + Counter(this.counts))
        if this.rolled_back:
            self._follow()
        elif this.chosen:
            self.refresh()
            if self.reference:
                self.reference.follow(self.engine)
        self.state["step"] = number
        return this

    def _check(self, groups: Sequence[Group], number: int) -> tuple[dict[str, float], bool]:
        """Metrics of the scored answers, and whether a health rule rolled the policy back."""
        numbers = self._metrics(groups, self.options["annotate"])
        return numbers, self._judge(number, numbers)

    def _judge(self, number: int, numbers: Mapping[str, float]) -> bool:
        """Whether a health rule rolled everything learned back."""
        rolled_back = self.health(number, numbers, self.state)
        self.state["role_updates"] = {role.name: role.learner.steps for role in self.roles}
        return rolled_back

    def _metrics(self, groups: Sequence[Group], specs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
        """Round metrics from rank 0, so that all ranks decide alike."""
        options, watched = self.options, self.options["watch"].get("kl_prompts", 0)
        models = self.models if self.reference else Overlay(self.models, self.live)
        found = round_metrics(
            groups,
            specs,
            optimised=optimised_rewards(options["annotate"], options["select"], options["fit"]["updates"])
            if specs
            else (),
            reference=models.get("reference") if watched else None,
            kl_prompts=watched,
            itself=not self.state["updates"],
        )
        return ranks.once(lambda: found)

    def _learn_roles(self, groups: Sequence[Group], ctx: Context) -> dict[str, float]:
        line: dict[str, float] = {}
        for role in self.roles:
            line |= role.learn(
                groups,
                ctx,
                tokenizer=self.learner.tokenizer,
                tokens=self.profile["tokens_per_microbatch"],
            )
            self.state["role_updates"][role.name] = role.learner.steps
        return line

    def _learn(self, groups: Sequence[Group], ctx: Context) -> tuple[dict[str, float], int]:
        line, steps = update(
            dict.fromkeys(self.objectives, self.learner),
            self.objectives,
            groups,
            self.options["fit"],
            tokens=self.profile["tokens_per_microbatch"],
            seed=ctx.seed + ctx.round,
            at=ctx.round - self.options["start"],
            before=(lambda some: prepare_groups(some, self.fresh, ctx)) if self.fresh else None,
            after=self.refresh if self.fresh else None,
        )
        self.state["updates"] += steps
        return line, steps

    def finish(self, this: Round) -> dict[str, Any]:
        """Sample the final weights once more, save and verify them. Returns the summary."""
        job, state, tokens = self.job, self.state, self.profile["tokens_per_microbatch"]
        # The final weights have not been sampled yet.
        last, _ = without_failed(
            sample(this.prompts, self.built, self.options, self.context(state["step"] + 1))
        )
        difference, numbers = agree(self.learner, fresh(last), self.profile), self._metrics(last, ())
        self._judge(state["step"], numbers)
        self.learner.save(job.work.product)
        for role in self.roles:
            role.learner.save(job.work.product / ROLES / role.name)
        if this.chosen:
            ranks.once(lambda: write_groups(job.work.product / "last_groups.parquet", this.chosen))
        return {
            "steps": state["step"],
            "updates": state["updates"],
            **({"role_updates": state["role_updates"]} if self.roles else {}),
            "counts": state["counts"],
            "rolled_back_steps": state["rolled_back"],
            **self.health.summary(),
            "probe": {"ended": 1 - numbers["truncated"], "sampler_difference": difference},
            "reload_difference": verify_saved(
                job.work.product,
                self.learner,
                last[:2],
                kind="policy",
                tokens=tokens,
                precision=weights_precision(self.profile),
            ),
        }


def _learner(job: Job, name: str, section: Mapping[str, Any]) -> TorchLearner | DeepSpeedLearner:
    """The learner of the policy or a role. The length of its learning-rate schedule is the rounds that it
    learns in, since how many updates a round makes is known when its groups are selected.
    """
    rounds = job.options["rounds"] - section["start"] + 1
    return make_learner(
        job.path(name),
        _kind(section),
        section["fit"],
        job.options["profile"],
        rounds,
        rounds * section["fit"]["warmup"],
    )


def _kind(section: Mapping[str, Any]) -> Any:
    return "policy_with_value" if section["value_head"] else "policy"


def _role(job: Job, name: str, section: Mapping[str, Any]) -> Role:
    """The learner, live engine and target of a role, all from the weights of the input of its name."""
    profile, kind, learner = job.options["profile"], _kind(section), _learner(job, name, section)
    engine, refresh = live_engine(profile, learner, job.work.progress / f"current_{name}", kind)
    target = engine_of(_exact(profile), job.path(name), kind) if section["target"] is not None else None
    return Role(name, section, learner, engine, refresh, target)


def _exact(profile: Mapping[str, Any]) -> dict[str, Any]:
    """The profile of a model that follows another: its updates are smaller than half precision resolves."""
    return {**profile, "engine": "torch", "precision": "float32"}
