"""Stages of an online round before training: rollout, annotate, select; and the preparation of offline
groups.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ratchet.components.data.groups import read_groups, write_groups
from ratchet.components.errors import DataError, HealthError
from ratchet.components.evaluation.certificate import require
from ratchet.components.evaluation.gold import GoldMeasure
from ratchet.components.evaluation.health import ACTIONS, check
from ratchet.components.models.load import load_tokenizer
from ratchet.components.models.reward import is_reward_model
from ratchet.components.models.value import FILE as VALUE_HEAD
from ratchet.components.piece import build
from ratchet.components.protocols import Engine
from ratchet.components.stages import progress
from ratchet.components.stages.job import Job
from ratchet.components.stages.shards import sharded_engine
from ratchet.components.training import rounds
from ratchet.components.training.loop import texts_read
from ratchet.components.training.round_metrics import round_metrics
from ratchet.components.types import Context, Group


def rollout(job: Job) -> dict[str, Any]:
    """Sample this round's prompts and let the current policy answer them."""
    options, context = job.options, context_of(job)
    prompts = [group.prompt for group in read_groups(job.path("data") / f"{options['data']}.parquet")]
    built = pieces_of(job)
    if "answered" in job.inputs:
        rounds.learn_prompts(read_groups(job.path("answered") / "groups.parquet"), built)
    mine = rounds.choose(prompts, built, options, context)
    each = options["rollout"].get("responses_per_prompt")
    progress.expect("answers", each and each * len(mine))
    began = time.monotonic()
    groups = rounds.sample_to(job.work.product / "groups.parquet", mine, built, options, context)
    seconds = time.monotonic() - began  # includes loading the model
    rounds.save_memories(built.memories, job.work.product)
    tokens = sum(sum(t.mask) for g in groups for t in g.trajectories)
    return sampling_summary(groups, tokens, seconds)


def pieces_of(job: Job) -> rounds.Pieces:
    """The pieces of a stage of a round, with the state that the same stage of the round before left them."""
    built = rounds.Pieces(job.options)
    if "before" in job.inputs:
        rounds.restore_memories(built.memories, job.path("before"))
    return built


def sampling_summary(groups: Sequence[Group], tokens: int, seconds: float) -> dict[str, Any]:
    """Metadata of a stage that kept `groups` of `tokens` sampled tokens: counts, tokens per second."""
    stops = Counter(t.stop for g in groups for t in g.trajectories)
    counts = {
        "prompts": len(groups),
        "responses": stops.total(),
        "responses cut at max_tokens": stops["length"],
        "responses that failed": stops["error"],
    }
    return {"counts": counts, "tokens": tokens, "tokens_per_second": round(tokens / seconds, 1)}


def annotate(job: Job) -> dict[str, Any]:
    """Score the answers, apply the health rules, drop answers without a valid reward. `HealthError` if a rule
    stops the run.
    """
    options = job.options
    groups = read_groups(job.path("groups") / "groups.parquet")
    context, watched = context_of(job), options["watch"].get("kl_prompts", 0)
    itself = job.inputs["policy"].digest == job.inputs["initial"].digest
    measures_kl = watched and not itself
    progress.expect(
        "texts",
        texts_read(options["annotate"]) * _answers(groups)
        + (min(watched, len(groups)) if measures_kl else 0),
    )
    built = pieces_of(job)
    marked, counts = rounds.score(groups, built, options, context)
    numbers = round_metrics(
        marked,
        options["annotate"],
        optimised=options["optimised"],
        gold=gold_scores(job, marked, context),
        reference=context.models["initial"] if measures_kl else None,
        kl_prompts=watched,
        itself=itself,
    )
    history = [*(job.inputs[f"scored_{i}"].meta["round_metrics"] for i in job.rounds("scored_")), numbers]
    verdicts = check(history, options["health"])
    worst = max((v.action for v in verdicts), key=ACTIONS.index, default="ok")
    if worst == "stop":
        why = "; ".join(v.reason for v in verdicts if v.action == "stop")
        raise HealthError(
            f"round {options['round']} was stopped by a health rule: {why}. The previous round's policy "
            "is kept; fix the cause or change `online.health` and run again"
        )
    write_groups(job.work.product / "groups.parquet", marked)
    rounds.save_memories(built.memories, job.work.product)
    return {
        "counts": counts,
        "round_metrics": numbers,
        "verdict": worst,
        "verdicts": [v.reason for v in verdicts],
    }


def gold_scores(job: Job, groups: Sequence[Group], context: Context) -> list[list[float]] | None:
    """Gold score of every answer, one list per group, from the gold measure or the annotator in `watch.gold`.
    None without either, or if the gold measure has no passed certificate. `DataError` if the annotator has no
    score for an answer.
    """
    spec = job.options["watch"].get("gold")
    if isinstance(spec, Mapping):
        columns = build("annotate", spec)(groups, context)
        (name,) = (c for c in columns if c.startswith("reward.") and not c.endswith(".status"))
        for group, row in zip(groups, columns[name], strict=True):
            if any(value is None for value in row):
                raise DataError(
                    f"online.watch.gold: {spec['name']} has no score for an answer to prompt "
                    f"{group.prompt.id!r}; expected a number for every answer"
                )
        return [list(row) for row in columns[name]]
    if "gold" not in job.inputs:
        return None
    gold = GoldMeasure.load(job.path("gold"), job.path("encoder"))
    if not gold.certificate["passed"]:
        return None
    flat = iter(
        gold.score_replies([[*g.prompt.messages, *t.messages] for g in groups for t in g.trajectories])
    )
    return [[next(flat) for _ in g.trajectories] for g in groups]


def select(job: Job) -> dict[str, Any]:
    """Select the groups to train on, and add the columns that the objective reads from other models."""
    options = job.options
    groups = read_groups(job.path("groups") / "groups.parquet")
    context = context_of(job)
    earlier = [
        group
        for i in job.rounds("earlier_")
        for group in read_groups(job.path(f"earlier_{i}") / "groups.parquet")
    ]
    built, tokenizer = pieces_of(job), load_tokenizer(job.path("policy"))
    chosen, counts = rounds.select(groups, built, context, tokenizer, earlier=earlier)
    if not chosen:
        raise DataError(
            f"round {options['round']}: no group is left after selection ({counts}); usually all answers "
            "to each prompt have "
            "the same reward. Raise the temperature or responses_per_prompt, or inspect the rewards"
        )
    progress.expect("texts", texts_read(options["prepare"]) * _answers(chosen))
    write_groups(job.work.product / "groups.parquet", rounds.prepare(chosen, built, context))
    rounds.save_memories(built.memories, job.work.product)
    return {"counts": counts}


def prepare_offline(job: Job) -> dict[str, Any]:
    """Groups from disk, tokenised for the policy, with the columns that the objective reads."""
    from ratchet.components.stages.train import encoded

    options, tokenizer = job.options, load_tokenizer(job.path("policy"))
    groups, read, warnings = encoded(job, options["where"], tokenizer)
    context = context_of(job)
    progress.expect("texts", texts_read([*options["annotate"], *options["prepare"]]) * _answers(groups))
    built = rounds.Pieces(options)
    marked, scored = rounds.score(groups, built, options, context)
    chosen, counts = rounds.select(marked, built, context, tokenizer)
    write_groups(job.work.product / "groups.parquet", rounds.prepare(chosen, built, context))
    return {"counts": {**read, **scored, **counts}, "warnings": warnings}


def _answers(groups: Sequence[Group]) -> int:
    return sum(len(g.trajectories) for g in groups)


def context_of(job: Job, *, certified: bool = True) -> Context:
    """Context with every model of the inputs as an engine, loaded at first use. `certified`: reward models
    need a passed certificate, since training optimises them; metrics (`evaluate.metrics`) need none.
    """
    return Context(
        models=Engines(job, certified), seed=job.options["seed"], round=job.options.get("round", 0)
    )


class Engines(Mapping[str, Any]):
    """Mapping of model names to engines, loaded at first use."""

    def __init__(self, job: Job, certified: bool) -> None:
        self._job, self._certified = job, certified
        self._names = [
            name for name, artifact in job.inputs.items() if artifact.kind == "weights" and name != "base"
        ]
        self._loaded: dict[str, Engine] = {}

    def __getitem__(self, name: str) -> Engine:
        if name not in self._names:
            raise KeyError(name)
        if name not in self._loaded:
            self._loaded[name] = engine(self._job, name, certified=self._certified)
        return self._loaded[name]

    def __iter__(self):
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def certificate_of(job: Job, name: str) -> Mapping[str, Any] | None:
    """The certificate of a reward model input, from the stage that trained or certified it."""
    return job.inputs.get(f"{name}_certificate", job.inputs[name]).meta.get("certificate")


def engine(job: Job, name: str, *, certified: bool = True) -> Engine:
    """The engine of a model input. `ContractError` for a reward model without a passed certificate if
    `certified`.
    """
    profile, artifact = job.options["profile"], job.inputs[name]
    if is_reward_model(artifact.path):
        if certified:
            require(certificate_of(job, name), f"the reward model {name!r}")
        return sharded_engine(profile, artifact.path, "reward")
    kind = "policy_with_value" if (artifact.path / VALUE_HEAD).exists() else "policy"
    return sharded_engine(profile, artifact.path, kind)
