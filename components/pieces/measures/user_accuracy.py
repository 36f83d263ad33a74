"""Measure `user_accuracy`: whether a reward model orders the pairs of held-out users as these do."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ratchet.components.errors import ContractError, DataError
from ratchet.components.inference.answers import reward_model_scores
from ratchet.components.piece import piece
from ratchet.components.recipes.ranges import Count
from ratchet.components.types import Context, Group, Message, Prompt, Trajectory

if TYPE_CHECKING:
    from torch import Tensor

    from ratchet.components.protocols import ModelEngine


@piece(paper="arXiv:2408.10075")
def user_accuracy(
    groups: Sequence[Group], ctx: Context, *, model: str = "reward_model", latent: Count = 8
) -> list[list[float]]:
    """1 if the model gives the answer that the user of a prompt prefers (`chosen` in the prompt's meta) a
    higher reward than the other (`rejected`), 1/2 if they are equal, else 0. 1/2 is chance. The policy's
    answers do not enter: each gets the number of its prompt.

    A reward model scores the two answers, whoever the user is. A policy that was trained with
    `variational_preference`, with as large a `latent`, infers the user from `context` in the meta, a list of
    [prompt, chosen, rejected], and scores with the posterior's mean. That needs the PyTorch engine.
    """
    return _spread(groups, margins(groups, ctx, model, latent, range(len(groups))))


@piece(paper="arXiv:2408.10075")
def exchanged(
    groups: Sequence[Group], ctx: Context, *, model: str = "reward_model", latent: Count = 8
) -> list[list[float]]:
    """As `user_accuracy`, where each prompt has the context of the next one of another user: what is left if
    the latent tells nothing about the user. It falls with a latent that is used and stays with one that
    collapsed.
    """
    users = [group.prompt.meta.get("user") for group in groups]
    number = len(groups)
    others = [
        next((j % number for j in range(i + 1, i + number) if users[j % number] != users[i]), i)
        for i in range(number)
    ]
    return _spread(groups, margins(groups, ctx, model, latent, others))


def _spread(groups: Sequence[Group], found: Sequence[float]) -> list[list[float]]:
    return [
        [float(margin > 0) + 0.5 * (margin == 0)] * len(group.trajectories)
        for group, margin in zip(groups, found, strict=True)
    ]


def margins(
    groups: Sequence[Group], ctx: Context, model: str, latent: int, contexts: Sequence[int]
) -> list[float]:
    """Reward of the chosen minus that of the rejected answer of every prompt. `contexts`: number of the group
    whose context is used. `DataError` for a prompt without a pair.
    """
    pairs = []
    for group in groups:
        if not {"chosen", "rejected"} <= set(group.prompt.meta):
            raise DataError(
                f"user_accuracy: expected `chosen` and `rejected` in the meta of the prompt "
                f"{group.prompt.id!r}, got {', '.join(sorted(group.prompt.meta)) or 'none'}"
            )
        pairs.append(_pair(group.prompt, group.prompt.meta["chosen"], group.prompt.meta["rejected"]))
    engine = getattr(ctx.models[model], "local", ctx.models[model])
    if getattr(engine, "kind", "reward") == "reward":
        scores = reward_model_scores(pairs, ctx, model)[0]
        return [float(chosen or 0) - float(rejected or 0) for chosen, rejected in scores]
    told = [[_told(entry) for entry in group.prompt.meta.get("context", ())] for group in groups]
    return latent_margins(engine, pairs, [told[i] for i in contexts], latent)


def _pair(prompt: Prompt, chosen: str, rejected: str) -> Group:
    return Group(
        prompt, tuple(Trajectory((Message(role="assistant", content=text),)) for text in (chosen, rejected))
    )


def _told(entry: Sequence[str]) -> Group:
    text, chosen, rejected = entry
    return _pair(Prompt(text, (Message(role="user", content=text),)), chosen, rejected)


def latent_margins(
    engine: ModelEngine, pairs: Sequence[Group], contexts: Sequence[Sequence[Group]], latent: int
) -> list[float]:
    """b(chosen) - b(rejected) + (f(chosen) - f(rejected)) . posterior mean, of each pair given its
    context.
    """
    import torch

    from ratchet.components.pieces.objectives.variational_preference import posterior

    flat = [pair for told in contexts for pair in told]
    shared, taste, evidence, spread = _differences(engine, [*pairs, *flat], latent)
    number = len(pairs)
    owner = torch.tensor([i for i, told in enumerate(contexts) for _ in told], dtype=torch.long)
    mean, _ = posterior(evidence[number:], spread[number:], owner, number)
    return (shared[:number] + (taste[:number] * mean).sum(-1)).tolist()


def _differences(engine: ModelEngine, pairs: Sequence[Group], latent: int) -> tuple[Tensor, ...]:
    """Chosen minus rejected of b (P,), f (P,K) and g (P,K), and the pair's mean of h (P,K)."""
    import torch

    from ratchet.components.inference.torch import SCORE_TOKENS
    from ratchet.components.models.reading import Reading
    from ratchet.components.pieces.objectives.variational_preference import answer_states
    from ratchet.components.training.packing import pack

    model = getattr(engine, "model", None)
    if model is None:
        raise ContractError("user_accuracy: the engine gives no access to its states; use `engine: torch`")
    with torch.inference_mode():
        encoded = [engine.encode(pair) for pair in pairs]
        rows = torch.cat(
            [
                answer_states(Reading(model, batch), 1 + 3 * latent)
                for batch in pack(encoded, unit="pair", tokens=SCORE_TOKENS)
            ]
        ).cpu()
    differ, mean = rows[0::2] - rows[1::2], (rows[0::2] + rows[1::2]) / 2
    parts = [differ[:, 0], *(differ[:, 1 + i * latent : 1 + (i + 1) * latent] for i in range(2))]
    return (*parts, mean[:, 1 + 2 * latent :])
