"""Rollout `by_sentence`: answers under controllers whose strengths change from sentence to sentence."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ratchet.components.inference.answers import trajectory
from ratchet.components.piece import piece
from ratchet.components.pieces.rollouts.sample import prompt_seed
from ratchet.components.recipes.ranges import Count, Finite, Temperature
from ratchet.components.types import Context, Group, Prompt, Request, Sample, Trajectory

if TYPE_CHECKING:
    from ratchet.components.protocols import Engine

STOPS = (".", "!", "?")
"""Ends of a sentence."""


@dataclass
class Path:
    """One answer so far. `seed`: of its random numbers."""

    prompt: Prompt
    start: list[int]
    seed: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    plan: list[str] = field(default_factory=list)
    ended: bool = False


def asked(question: str, said: str) -> str:
    """What the planner is asked: the last message of the prompt, and the answer so far."""
    return f"{question} | {said.strip()}"


@piece(writes=("logprobs.sampled",), models=("policy", "{strengths}", "{planner}"), paper="arXiv:2412.14626")
def by_sentence(
    prompts: Sequence[Prompt],
    ctx: Context,
    *,
    strengths: Mapping[str, Finite],
    planner: str,
    responses_per_prompt: Count = 4,
    max_tokens: Count = 128,
    temperature: Temperature = 1.0,
) -> list[Group]:
    """Dynamic control: before each sentence the model `planner` reads the prompt and the answer so far
    (`asked`) and names a controller, likeliest tokens first. The sentence, up to . ! ? or the end of the
    answer, is sampled with p proportional to policy^(1 - e) controller^e, e its entry in `strengths`: for a
    policy trained with the adapter `steer`, with the logits E (I + e W) h. A name without a strength, or a
    strength of 0, leaves the policy alone.

    The planner stands for the paper's recurrent network, which outputs all strengths at once. Names are in
    `meta["plan"]` of a trajectory. `logprobs` are those of the mixture that sampled each token, also at a
    temperature other than 1.
    """
    from ratchet.components.inference.mixed import MixedEngine

    policy = ctx.models["policy"]
    paths = [
        Path(prompt, list(policy.encode_prompt(prompt)), (prompt_seed(ctx, prompt) + 7919 * i) & 0x7FFFFFFF)
        for prompt in prompts
        for i in range(responses_per_prompt)
    ]
    engines: dict[str, MixedEngine] = {}
    while live := [path for path in paths if not path.ended and len(path.tokens) < max_tokens]:
        by_plan: dict[str, list[Path]] = defaultdict(list)
        for path, name in zip(live, _plans(live, ctx.models[planner], policy), strict=True):
            path.plan.append(name)
            by_plan[name if strengths.get(name) else ""].append(path)
        for name, own in sorted(by_plan.items()):
            if name not in engines:
                weights = {
                    "policy": 1.0 - strengths.get(name, 0.0),
                    **({name: strengths[name]} if name else {}),
                }
                engines[name] = MixedEngine(ctx.models, weights)
            requests = [
                Request(
                    [*path.start, *path.tokens],
                    max_tokens=max_tokens - len(path.tokens),
                    temperature=temperature,
                    seed=path.seed + len(path.plan),
                    stop_strings=STOPS,
                )
                for path in own
            ]
            for path, (sample,) in zip(own, engines[name].generate(requests), strict=True):
                path.tokens += sample.tokens
                path.logprobs += sample.logprobs
                path.ended = sample.tokens[-1] in policy.contract.eos
    parts = [f"{name}:{ctx.models[name].weights}" for name in ("policy", planner, *sorted(strengths))]
    digest = hashlib.sha256(f"{parts} {sorted(strengths.items())}".encode()).hexdigest()
    answers = [_answer(path, policy.decode, digest) for path in paths]
    size = responses_per_prompt
    return [Group(prompt, tuple(answers[i * size : (i + 1) * size])) for i, prompt in enumerate(prompts)]


def _plans(paths: Sequence[Path], planner: Engine, policy: Engine) -> list[str]:
    """The name that the planner gives to the next sentence of each path; asked once for equal questions."""
    questions = [asked(path.prompt.messages[-1]["content"], policy.decode(path.tokens)) for path in paths]
    different = list(dict.fromkeys(questions))
    requests = [
        Request(
            planner.encode_prompt(Prompt(text, ({"role": "user", "content": text},))),
            max_tokens=16,
            temperature=0.0,
        )
        for text in different
    ]
    names = {
        text: planner.decode(samples[0].tokens).strip()
        for text, samples in zip(different, planner.generate(requests), strict=True)
    }
    return [names[text] for text in questions]


def _answer(path: Path, decode: Callable[[Sequence[int]], str], weights: str) -> Trajectory:
    whole = Sample(tuple(path.tokens), tuple(path.logprobs), "end" if path.ended else "length")
    made = trajectory(Request(path.start), whole, decode(path.tokens), weights, {"plan": list(path.plan)})
    return replace(made, actor="mixture")
