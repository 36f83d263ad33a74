"""Rollout `budget_forced`: reasoning that is made to go on a number of times, then to end in a verdict."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ratchet.components.piece import piece
from ratchet.components.pieces.rollouts.sample import prompt_seed
from ratchet.components.recipes.ranges import Bool, Count, Natural, PositiveShare, Temperature
from ratchet.components.types import Context, Group, Prompt, Request, Sample, Stop, Trajectory

if TYPE_CHECKING:
    from ratchet.components.protocols import Engine


@dataclass
class Draft:
    """An answer so far, after the prompt: its tokens with mask and log-probs. `wanted`: number of
    continuations; `verdicts`: texts of the verdicts after 0, 1, ... of them.
    """

    wanted: int
    tokens: list[int] = field(default_factory=list)
    mask: list[bool] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    verdicts: list[str] = field(default_factory=list)
    forced: int = 0
    stop: Stop = "end"

    def copy(self) -> Draft:
        return replace(self, tokens=[*self.tokens], mask=[*self.mask], logprobs=[*self.logprobs])

    def sampled(self, tokens: Sequence[int], logprobs: Sequence[float]) -> None:
        """Append tokens of the policy."""
        self.tokens += tokens
        self.mask += [True] * len(tokens)
        self.logprobs += logprobs

    def given(self, tokens: Sequence[int]) -> None:
        """Append tokens that the policy did not choose."""
        self.tokens += tokens
        self.mask += [False] * len(tokens)
        self.logprobs += [0.0] * len(tokens)


@piece(writes=("logprobs.sampled",), paper="arXiv:2505.11875")
def budget_forced(
    prompts: Sequence[Prompt],
    ctx: Context,
    *,
    close: str = "So",
    cue: str = "Wait,",
    continuations: Natural = 4,
    vary: Bool = False,
    verdicts: Bool = False,
    verdict_tokens: Count = 8,
    responses_per_prompt: Count = 4,
    max_tokens: Count = 128,
    temperature: Temperature = 1.0,
    top_p: PositiveShare = 1.0,
    top_k: Natural = 0,
) -> list[Group]:
    """Budget forcing: an answer has exactly `continuations` + 1 passages of reasoning, of at most
    `max_tokens` tokens each, then a verdict of at most `verdict_tokens`. A passage ends with the text
    `close`, with `cue`, by which the policy goes on of itself, with the end of the turn, or at its limit.
    Where it must go on, any such end but `cue` is removed and the tokens of `cue` are appended; where it must
    not, any end but `close` is removed and the tokens of `close` are appended. A token that holds the
    beginning of a marker is removed whole; sampled tokens are never decoded and encoded again.

    The loss mask is True on sampled tokens, False on those appended; log-probs are the sampler's.

    `vary`: answer i to a prompt has i mod (`continuations` + 1) continuations, so that RL meets every number.
    `verdicts`: a verdict is sampled after each passage. `meta["verdicts"]` lists them, from no continuation
    to the answer's own; without it, the answer's own alone. `meta["forced"]` is the number of cues that were
    appended. Random numbers depend on seed, round, prompt id, answer and passage.
    """
    engine, settings = ctx.models["policy"], {"temperature": temperature, "top_p": top_p, "top_k": top_k}
    starts = [list(engine.encode_prompt(prompt)) for prompt in prompts]
    made = [
        [Draft(i % (continuations + 1) if vary else continuations) for i in range(responses_per_prompt)]
        for _ in prompts
    ]
    marks = {text: list(engine.encode_text(text)) for text in (close, cue)}
    for passage in range(continuations + 1):
        live = [
            (p, i) for p, row in enumerate(made) for i, draft in enumerate(row) if draft.wanted >= passage
        ]
        requests = [
            Request(
                [*starts[p], *made[p][i].tokens],
                max_tokens=max_tokens,
                seed=_seed(ctx, prompts[p], i, passage, "passage"),
                stop_strings=(close, cue),
                **settings,
            )
            for p, i in live
        ]
        closed: list[tuple[int, int, Draft]] = []
        for (p, i), (passed,) in zip(live, engine.generate(requests), strict=True):
            draft = made[p][i]
            if verdicts or draft.wanted == passage:
                closed.append((p, i, draft.copy()))
                _end(engine, closed[-1][2], passed, close, cue, marks[close])
            if draft.wanted > passage:
                draft.forced += not _end(engine, draft, passed, cue, close, marks[cue])
        requests = [
            Request(
                [*starts[p], *draft.tokens],
                max_tokens=verdict_tokens,
                seed=_seed(ctx, prompts[p], i, passage, "verdict"),
                **settings,
            )
            for p, i, draft in closed
        ]
        for (p, i, draft), (said,) in zip(closed, engine.generate(requests), strict=True):
            made[p][i].verdicts.append(close + engine.decode(said.tokens))
            if draft.wanted == passage:
                draft.sampled(said.tokens, said.logprobs)
                made[p][i] = replace(draft, verdicts=made[p][i].verdicts, stop=said.stop)
    meta = {"round": ctx.round, **settings, "max_tokens": max_tokens}
    return [
        Group(
            prompt,
            tuple(
                _trajectory(engine, start, draft, {**meta, "seed": prompt_seed(ctx, prompt), "sample": i})
                for i, draft in enumerate(row)
            ),
        )
        for prompt, start, row in zip(prompts, starts, made, strict=True)
    ]


def _seed(ctx: Context, prompt: Prompt, number: int, passage: int, what: str) -> int:
    """31 bits of a hash of seed, round, prompt id, answer, passage and what is sampled."""
    text = f"{ctx.seed}/{ctx.round}/{prompt.id}/{number}/{passage}/{what}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) >> 1


def _end(
    engine: Engine, draft: Draft, passage: Sample, wanted: str, other: str, tokens: Sequence[int]
) -> bool:
    """Append a passage that ends with the text `wanted`, whose `tokens` take the place of another end.
    Returns whether the policy wrote that end itself.
    """
    text, places = engine.decode(passage.tokens), engine.offsets(passage.tokens)
    start, stop = places[-1]
    found = {mark: text.rfind(mark) for mark in (wanted, other)}
    ends = {mark: at for mark, at in found.items() if at >= 0 and start < at + len(mark) <= stop}
    own = wanted in ends
    if own:
        kept = len(places)
    elif ends:
        kept = next(t for t, (_, last) in enumerate(places) if last > ends[other])
    else:
        kept = len(places) - (start == stop and passage.stop == "end")  # the end-of-turn token has no text
    draft.sampled(passage.tokens[:kept], passage.logprobs[:kept])
    if not own:
        draft.given(tokens)
    return own


def _trajectory(engine: Engine, start: list[int], draft: Draft, meta: dict[str, Any]) -> Trajectory:
    """The answer after its prompt."""
    before = len(start)
    return Trajectory(
        messages=({"role": "assistant", "content": engine.decode(draft.tokens)},),
        inputs={"tokens": [*start, *draft.tokens]},
        mask=[False] * before + draft.mask,
        logprobs=[0.0] * before + draft.logprobs,
        actor="policy",
        weights=engine.weights,
        stop=draft.stop,
        meta={
            **meta,
            "continuations": draft.wanted,
            "forced": draft.forced,
            "verdicts": draft.verdicts,
        },
    )
