"""Rollouts of policies that act on observations: `control`, and `control.expert` for imitation."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ratchet.components.errors import ContractError
from ratchet.components.inference.arrays import normals
from ratchet.components.piece import build, piece
from ratchet.components.recipes.ranges import ArrayEnvironmentSpec, Count
from ratchet.components.types import Context, Group, Prompt, Span, Stop, Trajectory

Choose = Callable[[Any, Any, Sequence[int]], tuple[Any, Any]]
"""(environment, observations (N,O), seeds) -> actions (N,A), and their log-probs (N,) or None."""


@piece(writes=("logprobs.sampled", "turn_reward"), paper="arXiv:1707.06347")
def control(
    prompts: Sequence[Prompt],
    ctx: Context,
    *,
    environment: ArrayEnvironmentSpec,
    responses_per_prompt: Count = 4,
    steps: Count = 100,
) -> list[Group]:
    """Groups of `responses_per_prompt` episodes of at most `steps` actions by the policy, all of them stepped
    together. A trajectory's inputs are `observations` (T,O) and `actions` (T,A); every step counts, and is a
    span with its reward. Its message is the environment's summary, its meta has the environment's measures.

    Stop: `environment` (it ended), `turns` (cut by the limit), `error` (its numbers are not finite: a failed
    trajectory). Column `turn_reward` (T): the rewards of the steps.

    Random numbers depend on seed, round, prompt id, episode and step only.
    """
    engine = ctx.models["policy"]
    if not hasattr(engine, "act"):
        raise ContractError(
            "control: the policy is a language model, which does not act on observations; use a model of a "
            "family such as `gaussian`, or the rollout `episodes`"
        )

    def choose(world: Any, observations: Any, seeds: Sequence[int]) -> tuple[Any, Any]:
        return engine.act(observations, seeds)

    return _episodes(prompts, ctx, environment, responses_per_prompt, steps, choose, engine.weights)


@piece(paper="arXiv:2006.11239")
def expert(
    prompts: Sequence[Prompt],
    ctx: Context,
    *,
    environment: ArrayEnvironmentSpec,
    count: Count = 1,
    steps: Count = 100,
) -> list[Group]:
    """Groups of `count` episodes of the environment's expert, whose actions a policy learns to imitate. They
    have no log-probs, and their actor is `expert`. `ContractError` for an environment without one.
    """
    return _episodes(prompts, ctx, environment, count, steps, _by_expert)


def _by_expert(world: Any, observations: Any, seeds: Sequence[int]) -> tuple[Any, None]:
    if not hasattr(world, "expert"):
        raise ContractError(
            f"control.expert: the environment {type(world).__name__} has no expert to imitate"
        )
    return world.expert(normals(seeds, world.action)), None


def _episodes(
    prompts: Sequence[Prompt],
    ctx: Context,
    environment: Mapping[str, Any],
    count: int,
    steps: int,
    choose: Choose,
    weights: str | None = None,
) -> list[Group]:
    """`count` episodes of each prompt; of the policy with these `weights`, or of the expert."""
    each = [prompt for prompt in prompts for _ in range(count)]
    if not each:
        return []
    world = build("array_environment", environment)
    observations: Any = np.asarray(world.begin(each), np.float32)
    broken: Any = ~np.isfinite(observations).all(-1)
    ended, lengths, taken = np.zeros(len(each), bool), np.zeros(len(each), int), []
    for step in range(steps):
        running = ~broken & ~ended
        if not running.any():
            break
        seeds = [step_seed(ctx, prompt, i % count, step) for i, prompt in enumerate(each)]
        shown = np.where(running[:, None], observations, 0)
        actions, logprobs = choose(world, shown, seeds)
        actions, made = np.asarray(actions, np.float32), world.step(actions)
        rewards, done = np.asarray(made.rewards, np.float32), np.asarray(made.done, bool)
        taken.append((shown, actions, np.zeros(len(each)) if logprobs is None else logprobs, rewards))
        lengths += running
        observations = np.asarray(made.observations, np.float32)
        finite = np.isfinite(actions).all(-1) & np.isfinite(rewards)
        broken |= running & ~(finite & (done | np.isfinite(observations).all(-1)))
        ended |= running & ~broken & done
    parts = [np.stack(part, axis=1) for part in zip(*taken, strict=True)]
    scores, texts = world.score(), world.summary()
    trajectories = []
    for i, length in enumerate(lengths.tolist()):
        seen, actions, logprobs, rewards = [part[i, :length].tolist() for part in parts] or [[]] * 4
        error = (
            {"error": "a number of the episode is not finite"} if broken[i] else {"score": dict(scores[i])}
        )
        stop: Stop = "error" if broken[i] else "environment" if ended[i] else "turns"
        trajectories.append(
            Trajectory(
                ({"role": "assistant", "content": texts[i]},),
                {"observations": seen, "actions": actions},
                [True] * length,
                None if weights is None else logprobs,
                actor="expert" if weights is None else "policy",
                weights=weights or "",
                spans=tuple(Span(t, t + 1, reward) for t, reward in enumerate(rewards)),
                stop=stop,
                meta={"round": ctx.round, "steps": steps, "sample": i % count, **error},
            )
        )
    groups = []
    for p, prompt in enumerate(prompts):
        own = tuple(trajectories[p * count : (p + 1) * count])
        groups.append(Group(prompt, own, {"turn_reward": [[span.reward for span in t.spans] for t in own]}))
    return groups


def step_seed(ctx: Context, prompt: Prompt, episode: int, step: int) -> int:
    """31 bits of a hash of seed, round, prompt id, episode and step."""
    text = f"{ctx.seed}/{ctx.round}/{prompt.id}/{episode}/{step}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) >> 1
