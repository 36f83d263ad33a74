"""The packed forward pass of a language model on one batch, shared by all outputs that are read from it.

The only place with the shift by one position: the state *before* a token predicts that token.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any, final

import torch
from torch import Tensor, nn

from ratchet.components.errors import ContractError
from ratchet.components.models.attention import PackedPlan
from ratchet.components.models.images import image_rows
from ratchet.components.models.layers import hidden_states, language_model, output_layer
from ratchet.components.models.logprobs import CHUNK, chosen_logprobs
from ratchet.components.models.products import product
from ratchet.components.types import Batch


@final
class Reading:
    """Reads outputs (B,T) of a batch. The tokens of all rows are one flat row of N tokens, in which a common
    prefix of rows is stored once; equal (state, token) pairs of the loss mask are computed once, M in all.

    An objective's own reader is a function `(reading, *, option) -> Tensor` in its file. `ContractError` if
    the loss mask includes the first token of a row, which has no preceding token.
    """

    def __init__(self, model: nn.Module, batch: Batch) -> None:
        self.model, self.batch = model, batch
        self.language = language_model(model)
        rows = list(batch.inputs["tokens"])
        self.images = image_rows(self.language, rows, batch.inputs.get("images", ()))
        self.plan = PackedPlan(self.images.rows if self.images else rows)
        self.tokens = self.plan.tokens[0]
        if batch.mask[:, 0].any():
            row = int(batch.mask[:, 0].nonzero()[0])
            raise ContractError(
                f"prompt {batch.ids[row]!r}: the loss mask includes the first token of a row, which has no "
                "preceding token"
            )
        before = torch.cat(
            [
                index[batch.mask[b, : len(index)].nonzero()[:, 0] - 1]
                for b, index in enumerate(self.plan.index)
            ]
        )
        targets = torch.cat([tokens[batch.mask[b, : len(tokens)]] for b, tokens in enumerate(rows)])
        # Equal rows, such as one chosen answer in several pairs, have equal outputs: computed once.
        (self._before, self._targets), self._same = torch.unique(
            torch.stack([before, targets]), dim=1, return_inverse=True
        )

    @cached_property
    def hidden(self) -> Tensor:
        """Last hidden states (N, H) of the flat row."""
        return self._states(self.embed(self.tokens)[None] if self.images else None)

    def _states(self, embeddings: Tensor | None) -> Tensor:
        plan = self.plan
        return hidden_states(self.language, plan.tokens, plan.positions, plan, embeddings=embeddings)

    @cached_property
    def states(self) -> Tensor:
        """States (M, H) before the tokens of the loss mask."""
        return self.before(self.hidden)

    def before(self, hidden: Tensor) -> Tensor:
        """States (M, H) before the tokens of the loss mask, from hidden states (N, H) of the flat row."""
        return hidden[self._before.to(hidden.device)]

    def logprobs(self, states: Tensor, *, entropy: bool = False) -> tuple[Tensor, Tensor | None]:
        """Log-probs (M,) of the tokens given the states before them, and entropies, at temperature 1. Softmax
        is in float32, whatever the model's dtype.
        """
        head = output_layer(self.language)
        return chosen_logprobs(
            states.float() * head.scale if head.scale != 1 else states.float(),
            head.weight,
            self._targets.to(states.device),
            entropy=entropy,
            bias=head.bias,
            softcap=head.softcap,
        )

    def spread(self, values: Tensor) -> Tensor:
        """(M,) -> (B,T): each value at its steps, zero outside the loss mask."""
        row, step = self.batch.mask.nonzero().to(values.device).unbind(1)
        return values.new_zeros(self.batch.mask.shape).index_put(
            (row, step), values[self._same.to(values.device)]
        )

    def embed(self, tokens: Tensor) -> Tensor:
        """Embeddings (N, H) of tokens (N,) of the flat row, in which an image's places have numbers of their
        own.
        """
        if self.images:
            return self.images.embed(tokens[None])[0]
        embedding: Any = self.language.get_input_embeddings()  # pyright: ignore[reportCallIssue]
        return embedding(tokens.to(next(embedding.parameters()).device))

    def rerun(self, embeddings: Tensor) -> Tensor:
        """Hidden states (N, H) of a second pass over the flat row, on embeddings (N, H) instead of its
        tokens.
        """
        return self._states(embeddings[None])

    @torch.no_grad()
    def guesses(self) -> Tensor:
        """Tokens (N,) of the flat row, those of the loss mask replaced by the likeliest token after the true
        tokens before them. A token that several rows share is replaced if the mask of any of them has it.
        """
        if "hidden" in vars(self):
            hidden = self.hidden.detach()
        else:
            hidden = self._states(self.embed(self.tokens)[None] if self.images else None)
        before, chosen = torch.zeros_like(self.tokens), torch.zeros_like(self.tokens, dtype=torch.bool)
        for index, mask in zip(self.plan.index, self.batch.mask, strict=True):
            before[index[1:]] = index[:-1]
            chosen[index[mask[: len(index)]]] = True
        at, guessed = chosen.nonzero()[:, 0], self.tokens.clone()
        head = output_layer(self.language)
        for some in at.split(CHUNK):
            states = hidden[before[some].to(hidden.device)].float() * head.scale
            guessed[some] = product(states, head.weight, head.bias).argmax(-1).to(guessed.device)
        return guessed
