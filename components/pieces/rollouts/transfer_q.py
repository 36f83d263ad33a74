"""Rollout `transfer_q`: decoding guided by the reward that an aligned model reaches after each next token."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ratchet.components.inference.answers import trajectory
from ratchet.components.piece import build, piece
from ratchet.components.pieces.rollouts.sample import prompt_seed
from ratchet.components.recipes.ranges import Bool, Count, Natural, Positive, RewardSpec, Temperature
from ratchet.components.types import Context, Group, Prompt, Request, Sample, Trajectory


@dataclass
class Path:
    """One answer so far. `key`: what its random numbers depend on."""

    prompt: Prompt
    start: list[int]
    key: str
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    ended: bool = False


@piece(writes=("logprobs.sampled",), models=("{aligned}",), paper="arXiv:2405.20495")
def transfer_q(
    prompts: Sequence[Prompt],
    ctx: Context,
    *,
    reward: RewardSpec,
    aligned: str = "policy",
    alpha: Positive = 1.0,
    candidates: Count = 10,
    roll_outs: Natural = 1,
    roll_out_temperature: Temperature = 0.0,
    greedy: Bool = True,
    responses_per_prompt: Count = 1,
    max_tokens: Count = 128,
) -> list[Group]:
    """Transfer Q*, direct transfer (section 3): token z after the state s with probability proportional to
    p(z | s) exp(Q(s, z) / alpha), over the `candidates` likeliest tokens of the policy p. Q(s, z) is the mean
    reward of `roll_outs` completions of (s, z) by the model `aligned`, which is aligned to this reward;
    completions of the same state have the same random numbers. `greedy` takes the likeliest token instead of
    sampling. One deterministic roll-out and the greedy choice are those of the released code, which uses the
    aligned model as p and its logits in place of log p.

    `aligned` = the unaligned model is controlled decoding (CD, arXiv 2310.17022), `roll_outs: 0` scores the
    text up to z (ARGS, arXiv 2402.01694). Completions and the answer have `max_tokens` tokens together.
    `logprobs` are those of the decoder. A candidate whose text has no reward is never chosen while another
    has one.
    """
    engine, score = ctx.models["policy"], build("annotate", reward)
    weights = hashlib.sha256(f"{engine.weights}:{ctx.models[aligned].weights}".encode()).hexdigest()
    paths = [
        Path(prompt, list(engine.encode_prompt(prompt)), f"{prompt_seed(ctx, prompt)}/{i}")
        for prompt in prompts
        for i in range(responses_per_prompt)
    ]
    while live := [p for p in paths if not p.ended and len(p.tokens) < max_tokens]:
        likeliest = engine.generate(
            [
                Request([*p.start, *p.tokens], max_tokens=1, temperature=0.0, top_logprobs=candidates)
                for p in live
            ]
        )
        options = [list(samples[0].top[0]) for samples in likeliest]
        texts = _completions(
            live,
            options,
            ctx.models[aligned],
            engine.contract.eos,
            roll_outs,
            roll_out_temperature,
            max_tokens,
        )
        for path, tops, rows in zip(live, options, texts, strict=True):
            values = _values(path.prompt, rows, score, engine.decode, ctx)
            choice, logprob = _choose(
                tops, values, alpha, None if greedy else f"{path.key}/{len(path.tokens)}"
            )
            path.tokens.append(choice)
            path.logprobs.append(logprob)
            path.ended = choice in engine.contract.eos
    answers = [_answer(path, engine.decode, weights) for path in paths]
    size = responses_per_prompt
    return [Group(prompt, tuple(answers[i * size : (i + 1) * size])) for i, prompt in enumerate(prompts)]


def _completions(
    paths: Sequence[Path],
    options: Sequence[Sequence[tuple[int, float]]],
    aligned: Any,
    eos: Sequence[int],
    roll_outs: int,
    temperature: float,
    max_tokens: int,
) -> list[list[list[list[int]]]]:
    """Path -> candidate -> answers (token ids from the start) that the aligned model completes it to; the
    answer as it is where nothing can follow.
    """
    texts: list[list[list[list[int]]]] = []
    requests, places = [], []
    for path, tops in zip(paths, options, strict=True):
        texts.append([])
        for token, _ in tops:
            tokens = [*path.tokens, token]
            texts[-1].append([tokens])
            left = max_tokens - len(tokens)
            if roll_outs and left and token not in eos:
                seed = (
                    int.from_bytes(hashlib.sha256(f"{path.key}/{len(path.tokens)}".encode()).digest()[:4])
                    >> 1
                )
                requests.append(
                    Request(
                        [*path.start, *tokens],
                        count=roll_outs,
                        max_tokens=left,
                        temperature=temperature,
                        seed=seed,
                    )
                )
                places.append((texts[-1], len(texts[-1]) - 1, tokens))
    answers = aligned.generate(requests) if requests else []
    for (row, at, tokens), samples in zip(places, answers, strict=True):
        row[at] = [[*tokens, *sample.tokens] for sample in samples]
    return texts


def _values(
    prompt: Prompt,
    rows: Sequence[Sequence[Sequence[int]]],
    score: Callable[..., Any],
    decode: Callable[[Sequence[int]], str],
    ctx: Context,
) -> list[float]:
    """Mean reward of each candidate's answers; minus infinity if one has none."""
    flat = [
        Trajectory(
            ({"role": "assistant", "content": decode(tokens)},), {"tokens": tokens}, [True] * len(tokens)
        )
        for answers in rows
        for tokens in answers
    ]
    columns = score([Group(prompt, tuple(flat))], ctx)
    name = [column for column in columns if not column.endswith(".status")][-1]
    values = iter(-math.inf if v is None else float(v) for v in columns[name][0])
    return [math.fsum(next(values) for _ in answers) / len(answers) for answers in rows]


def _choose(
    tops: Sequence[tuple[int, float]], values: Sequence[float], alpha: float, key: str | None
) -> tuple[int, float]:
    """The next token and its log-prob under p exp(Q / alpha) / Z. `key`: of the random number; None is
    greedy.
    """
    known = values if max(values) > -math.inf else [0.0] * len(values)
    logits = [logprob + value / alpha for (_, logprob), value in zip(tops, known, strict=True)]
    highest = max(logits)
    shares = [math.exp(logit - highest) for logit in logits]
    if key is None:
        at = logits.index(highest)
    else:
        (at,) = random.Random(key).choices(range(len(shares)), shares)
    return tops[at][0], logits[at] - highest - math.log(math.fsum(shares))


def _answer(path: Path, decode: Callable[[Sequence[int]], str], weights: str) -> Trajectory:
    sample = Sample(tuple(path.tokens), tuple(path.logprobs), "end" if path.ended else "length")
    return replace(
        trajectory(Request(path.start), sample, decode(path.tokens), weights, {}), actor="transfer_q"
    )
