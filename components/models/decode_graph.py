"""Decode steps on a GPU as CUDA graphs: a small model spends ten times as long on starting its kernels as on
computing them, and a graph starts all kernels of a step at once.

A graph's shapes are fixed: one is captured for every number of rows and length of answers, both rounded up to
powers of two, when they are first met.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ratchet.components.models.cached_attention import Cache, FixedDecodePlan
from ratchet.components.models.layers import hidden_states

FEWEST_ROWS, FEWEST_TOKENS = 16, 32


def has_fixed_steps(model: Any) -> bool:
    """Whether a decode step is the same sequence of kernels whatever its tokens: on a GPU, for all models but
    mixtures of experts, whose routing decides which weights are used, and rotary embeddings that change with
    the length.
    """
    config = model.config.get_text_config().to_dict()
    experts = any("expert" in name and value for name, value in config.items())
    changing = any(f"'rope_type': '{kind}'" in str(config) for kind in ("dynamic", "longrope"))
    return next(model.parameters()).device.type == "cuda" and not experts and not changing


class DecodeGraphs:
    """The decode steps of one model and KV cache. Called as a `DecodePlan` is built; returns the last hidden
    states (R, H), which the next call overwrites.
    """

    def __init__(self, model: nn.Module, cache: Cache, *, width: int) -> None:
        self.model, self.cache, self.width = model, cache, width
        self.capacity, self.longest = cache.own.shape[2], cache.own.shape[4]
        # tokens, positions, place, lengths, prompts
        self.inputs = torch.zeros(5, self.capacity, dtype=torch.long, device=cache.device)
        self.graphs: dict[tuple[int, int], tuple[torch.cuda.CUDAGraph, Tensor]] = {}
        self.pool = torch.cuda.graph_pool_handle()

    def __call__(
        self,
        tokens: Tensor,
        positions: Tensor,
        *,
        slots: Sequence[int],
        prompt_lengths: Tensor,
        width: int,
        place: Tensor,
        lengths: Tensor,
    ) -> Tensor:
        live, used = len(lengths), torch.tensor(list(slots))
        rows = rounded(live, FEWEST_ROWS, self.capacity)
        own = rounded(int(lengths.max()) + 1, FEWEST_TOKENS, self.longest)
        given = torch.zeros(5, rows, dtype=torch.long)
        given[2] = self.cache.prompt.shape[2] * width
        at = place // width
        for row, values in zip(
            given, (tokens[0], positions[0], used[at] * width + place % width, lengths, prompt_lengths[at])
        ):
            row[:live] = values
        self.inputs[:, :rows] = given.to(self.inputs.device)
        if (rows, own) not in self.graphs:
            self.graphs[rows, own] = self._capture(rows, own)
        graph, hidden = self.graphs[rows, own]
        graph.replay()
        return hidden[:live]

    def _step(self, rows: int, own: int) -> Tensor:
        tokens, positions, place, lengths, prompts = self.inputs[:, :rows]
        plan = FixedDecodePlan(
            self.cache, width=self.width, own=own, place=place, lengths=lengths, prompts=prompts
        )
        return hidden_states(self.model, tokens[None], positions[None], plan)

    def _capture(self, rows: int, own: int) -> tuple[torch.cuda.CUDAGraph, Tensor]:
        # Once without capturing: libraries allocate and choose kernels at their first call. It writes what
        # the graph's first replay writes again.
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            self._step(rows, own)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self.pool):
            hidden = self._step(rows, own)
        return graph, hidden


def rounded(number: int, least: int, most: int) -> int:
    """The power of two from `number` on, at least `least` and at most `most`."""
    return min(most, max(least, 1 << (number - 1).bit_length()))
