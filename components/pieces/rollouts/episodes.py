"""Rollout `episodes`: the policy and an environment take turns, many episodes in lock step."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ratchet.components.environments.episode import Episode, step_all
from ratchet.components.piece import build, piece
from ratchet.components.pieces.rollouts.sample import prompt_seed
from ratchet.components.recipes.ranges import Count, EnvironmentSpec, Natural, PositiveShare, Temperature
from ratchet.components.text.images import images_of
from ratchet.components.types import (
    Context,
    Group,
    Message,
    Prompt,
    Request,
    Sample,
    Span,
    Step,
    Stop,
    Trajectory,
)

if TYPE_CHECKING:
    from ratchet.components.protocols import Engine


@dataclass
class Run:
    """An episode while it runs: its tokens so far with mask and log-probs, and its spans."""

    episode: Episode
    start: int
    tokens: list[int]
    mask: list[bool]
    logprobs: list[float]
    messages: list[Message]
    spans: list[Span] = field(default_factory=list)
    stop: Stop | None = None

    def act(self, answer: Sample, text: str) -> Span:
        """Append the policy's turn."""
        span = Span(len(self.tokens), len(self.tokens) + len(answer.tokens))
        self.tokens += answer.tokens
        self.mask += [True] * len(answer.tokens)
        self.logprobs += answer.logprobs
        self.messages.append({"role": "assistant", "content": text})
        return span

    def observe(self, messages: Sequence[Message], tokens: Sequence[int]) -> None:
        """Append the environment's turn, which is no choice of the policy."""
        here = len(self.tokens)
        self.spans.append(Span(here, here + len(tokens), actor="environment", kind="observe"))
        self.tokens += tokens
        self.mask += [False] * len(tokens)
        self.logprobs += [0.0] * len(tokens)
        self.messages += messages


@piece(writes=("logprobs.sampled", "turn", "turn_end", "turn_reward"), paper="arXiv:2502.01600")
def episodes(
    prompts: Sequence[Prompt],
    ctx: Context,
    *,
    environment: EnvironmentSpec,
    responses_per_prompt: Count = 4,
    turns: Count = 8,
    max_tokens: Count = 64,
    max_length: Count = 1024,
    temperature: Temperature = 1.0,
    top_p: PositiveShare = 1.0,
    top_k: Natural = 0,
) -> list[Group]:
    """Groups of `responses_per_prompt` episodes of at most `turns` turns, `max_tokens` a turn and
    `max_length` tokens after the prompt. The loss mask is True on the policy's turns; each is a span with its
    reward, and so is each observation. An environment's messages are encoded by the chat template and
    appended to the sampled tokens, which are never decoded and encoded again.

    Stop: `environment` (it ended), `turns` (cut by the limit or the environment), `length` (a turn or the
    episode was too long: its last action was not taken and is invalid), `error` (the environment broke: a
    failed trajectory). Columns over steps: `turn` (from 1, 0 for other speakers), `turn_end` (1 at a turn's
    last token) and `turn_reward` (the turn's reward, there). Measures of the environment are in the
    trajectory's meta.

    Random numbers depend on seed, round, prompt id, episode and turn; the first turn is that of `sample`.
    """
    engine = ctx.models["policy"]
    made = [
        [begin_episode(engine, environment, prompt) for _ in range(responses_per_prompt)]
        for prompt in prompts
    ]
    replies: dict[tuple[tuple[str, str], ...], list[int]] = {}
    for turn in range(1, turns + 1):
        live = [(p, i) for p, runs in enumerate(made) for i, run in enumerate(runs) if run.stop is None]
        if not live:
            break
        settings = {"temperature": temperature, "top_p": top_p, "top_k": top_k}
        answers = _answers(engine, ctx, prompts, made, live, turn, max_tokens, max_length, settings)
        acting: list[tuple[Run, Span]] = []
        for p, i in live:
            run, answer = made[p][i], answers[p, i]
            span = run.act(answer, engine.decode(answer.tokens))
            if answer.stop == "length":
                run.stop = "length"
                run.spans.append(replace(span, valid=False))
            else:
                acting.append((run, span))
        results = step_all(
            [run.episode for run, _ in acting], [run.messages[-1]["content"] for run, _ in acting], ctx.models
        )
        for (run, span), step in zip(acting, results, strict=True):
            record_turn(engine, run, span, step, replies, last=turn == turns, room=max_length)
    meta = {
        "round": ctx.round,
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "max_tokens": max_tokens,
        "turns": turns,
    }
    return [
        _group(prompt, runs, engine.weights, {**meta, "seed": prompt_seed(ctx, prompt)})
        for prompt, runs in zip(prompts, made, strict=True)
    ]


def begin_episode(engine: Engine, environment: Mapping[str, Any], prompt: Prompt) -> Run:
    episode = Episode(lambda: build("environment", environment), prompt)
    opening = list(episode.opening.messages)
    tokens = list(engine.encode_prompt(replace(prompt, messages=(*prompt.messages, *opening))))
    run = Run(episode, len(tokens), tokens, [False] * len(tokens), [0.0] * len(tokens), opening)
    run.stop = "error" if episode.error else None
    return run


def _answers(
    engine: Engine,
    ctx: Context,
    prompts: Sequence[Prompt],
    made: Sequence[Sequence[Run]],
    live: Sequence[tuple[int, int]],
    turn: int,
    max_tokens: int,
    max_length: int,
    settings: Mapping[str, Any],
) -> dict[tuple[int, int], Sample]:
    """The policy's next turn in every live episode. In the first turn all episodes of a prompt have the same
    tokens: one request.
    """
    if turn == 1:
        first = list(dict.fromkeys(p for p, _ in live))
        requests = [
            Request(
                made[p][0].tokens,
                count=len(made[p]),
                max_tokens=min(max_tokens, max_length),
                seed=prompt_seed(ctx, prompts[p]),
                images=images_of(prompts[p]),
                **settings,
            )
            for p in first
        ]
        return {
            (p, i): answer
            for p, answers in zip(first, engine.generate(requests), strict=True)
            for i, answer in enumerate(answers)
        }
    requests = [
        Request(
            list(made[p][i].tokens),
            max_tokens=min(max_tokens, max_length - len(made[p][i].tokens) + made[p][i].start),
            seed=_turn_seed(ctx, prompts[p], i, turn),
            images=images_of(prompts[p]),
            **settings,
        )
        for p, i in live
    ]
    return {at: answers[0] for at, answers in zip(live, engine.generate(requests), strict=True)}


def _turn_seed(ctx: Context, prompt: Prompt, number: int, turn: int) -> int:
    """31 bits of a hash of seed, round, prompt id, episode and turn."""
    text = f"{ctx.seed}/{ctx.round}/{prompt.id}/{number}/{turn}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) >> 1


def record_turn(
    engine: Engine,
    run: Run,
    span: Span,
    step: Step | None,
    replies: dict[tuple[tuple[str, str], ...], list[int]],
    *,
    last: bool,
    room: int,
) -> None:
    """Add the result of an action, and the observation if another turn follows."""
    if step is None:
        run.stop = "error"
        run.spans.append(span)
        return
    run.spans.append(
        Span(span.start, span.stop, step.reward, valid=step.observation.valid, numbers=step.numbers)
    )
    if step.done or step.truncated or last:
        run.stop = "environment" if step.done else "turns"
        return
    key = tuple((m["role"], m["content"]) for m in step.observation.messages)
    if key not in replies:
        replies[key] = list(engine.encode_reply(step.observation.messages))
    if len(run.tokens) - run.start + len(replies[key]) >= room:
        run.stop = "length"
        return
    run.observe(step.observation.messages, replies[key])


def _group(prompt: Prompt, runs: Sequence[Run], weights: str, meta: Mapping[str, Any]) -> Group:
    trajectories, columns = [], {"turn": [], "turn_end": [], "turn_reward": []}
    for i, run in enumerate(runs):
        score = run.episode.score()
        error = {"error": run.episode.error} if run.episode.error else {}
        trajectories.append(
            Trajectory(
                tuple(run.messages),
                {"tokens": run.tokens},
                run.mask,
                run.logprobs,
                actor="policy",
                weights=weights,
                spans=tuple(run.spans),
                stop="error" if error else run.stop or "turns",
                meta={**meta, "sample": i, "score": score, **error},
            )
        )
        rows = {name: [0.0] * len(run.tokens) for name in columns}
        for number, span in enumerate((s for s in run.spans if s.kind == "act"), 1):
            rows["turn"][span.start : span.stop] = [float(number)] * (span.stop - span.start)
            rows["turn_end"][span.stop - 1] = 1.0
            rows["turn_reward"][span.stop - 1] = span.reward or 0.0
        for name, row in rows.items():
            columns[name].append(row)
    return Group(prompt, tuple(trajectories), columns)
