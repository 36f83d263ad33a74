"""Rollout `recorded`: past episodes that the prompts hold, replayed in the environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ratchet.components.environments.episode import step_all
from ratchet.components.errors import DataError
from ratchet.components.piece import piece
from ratchet.components.pieces.rollouts.episodes import begin_episode, episodes, record_turn
from ratchet.components.recipes.ranges import Count, EnvironmentSpec, Natural
from ratchet.components.types import Context, Group, Message, Prompt, Sample, Trajectory

if TYPE_CHECKING:
    from ratchet.components.protocols import Engine

ACTOR = "logged"
"""Actor of a replayed episode."""


@piece(paper="arXiv:2412.07762")
def recorded(
    prompts: Sequence[Prompt],
    ctx: Context,
    *,
    environment: EnvironmentSpec,
    count: Count = 1,
    own: Natural = 0,
    turns: Count = 8,
    max_tokens: Count = 64,
    max_length: Count = 1024,
) -> list[Group]:
    """`own` episodes of the policy, as by `episodes` at temperature 1, and after them `count` past episodes
    of each prompt: round by round the next ones of `meta["log"]`, from its beginning again after the last. An
    entry is the actions of an episode, a sequence of texts (a text is one of letters). They are taken in the
    environment anew, so that tokens, rewards, spans and stops are those that the policy's own episode with
    these actions would have. Their actor is `logged`, and they have no log-probs.

    An episode whose log ends before the environment does has the stop `turns`. No columns are written.
    `DataError` for a prompt without a log.
    """
    engine = ctx.models["policy"]
    found = (
        episodes(
            prompts,
            ctx,
            environment=environment,
            responses_per_prompt=own,
            turns=turns,
            max_tokens=max_tokens,
            max_length=max_length,
        )
        if own
        else [Group(prompt, ()) for prompt in prompts]
    )
    replies: dict[tuple[tuple[str, str], ...], list[int]] = {}
    groups, limits = [], (max_tokens, max_length)
    for group in found:
        past = [
            _replayed(engine, environment, group.prompt, actions[:turns], limits, replies, ctx.models)
            for actions in _due(group.prompt, count, ctx.round)
        ]
        groups.append(Group(group.prompt, (*group.trajectories, *past)))
    return groups


def _due(prompt: Prompt, count: int, number: int) -> list[Sequence[str]]:
    """The past episodes of a prompt that round `number`, from 1, replays."""
    log = prompt.meta.get("log")
    if not isinstance(log, Sequence) or isinstance(log, str) or not log:
        raise DataError(
            f"recorded: prompt {prompt.id!r}: expected the actions of past episodes in meta.log, got "
            f"{log!r:.80}"
        )
    first = max(number - 1, 0) * count
    return [log[(first + i) % len(log)] for i in range(min(count, len(log)))]


def _replayed(
    engine: Engine,
    environment: Mapping[str, Any],
    prompt: Prompt,
    actions: Sequence[str],
    limits: tuple[int, int],
    replies: dict[tuple[tuple[str, str], ...], list[int]],
    models: Mapping[str, Any],
) -> Trajectory:
    """The episode of these actions, each with the end-of-turn token of a sampled one. `limits`: tokens of a
    turn, and of the episode; an action beyond them is cut and not taken, as a sampled one.
    """
    most, room = limits
    run = begin_episode(engine, environment, prompt)
    empty: tuple[Message, ...] = ()
    end = engine.encode_reply(empty, ended=False)[:1]
    for number, action in enumerate(actions, 1):
        if run.stop is not None:
            break
        tokens = (*engine.encode_text(action), *end)
        left = min(most, room - len(run.tokens) + run.start)
        if len(tokens) > left:
            span = run.act(Sample(tokens[:left], (), "length"), engine.decode(tokens[:left]))
            run.spans.append(replace(span, valid=False))
            run.stop = "length"
            break
        span = run.act(Sample(tokens, (), "end"), action)
        (step,) = step_all([run.episode], [action], models)
        record_turn(engine, run, span, step, replies, last=number == len(actions), room=room)
    score = run.episode.score()
    error = {"error": run.episode.error} if run.episode.error else {}
    return Trajectory(
        tuple(run.messages),
        {"tokens": run.tokens},
        run.mask,
        actor=ACTOR,
        spans=tuple(run.spans),
        stop="error" if error else run.stop or "turns",
        meta={"score": score, **error},
    )
