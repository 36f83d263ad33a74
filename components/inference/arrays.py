"""Inference engine of models that act on observations: actions, and scores of actions taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, final

import numpy as np
import torch

from ratchet.components.errors import ContractError
from ratchet.components.inference.torch import score_in_batches, tensors_digest, weights_digest
from ratchet.components.models.device import to_device
from ratchet.components.models.families import load_family
from ratchet.components.models.forward import model_outputs
from ratchet.components.models.products import product_precision
from ratchet.components.text.contract import contract_of
from ratchet.components.training import ranks
from ratchet.components.types import Group, Prompt, Request, Sample, Trajectory


@final
class ArrayEngine:
    """Acts and scores with a model of a family without tokens, in float32. The random numbers of an action
    depend on its seed only.
    """

    weights: str

    def __init__(self, path: Path, *, kind: str = "policy", threads: int | None = None) -> None:
        if threads:
            torch.set_num_threads(threads)
        self.kind = kind
        self.load(path)

    def load(self, path: Path) -> None:
        """Load the weights of a model directory."""
        self.model: Any = to_device(load_family(Path(path), self.kind)).requires_grad_(False)
        self.weights, self.contract = weights_digest(Path(path)), contract_of(Path(path))

    @classmethod
    def following(cls, learner: Any) -> ArrayEngine:
        """An engine with the weights of a learner in memory; `follow` after each update."""
        engine = cls.__new__(cls)
        engine.kind = learner.kind
        engine.follow(learner)
        return engine

    def follow(self, learner: Any) -> None:
        """Use the learner's weights as they are now."""
        self.model = learner.merged()
        self.weights = tensors_digest(self.model)

    @torch.inference_mode()
    @product_precision("float32")
    def act(self, observations: Any, seeds: Sequence[int]) -> tuple[Any, Any]:
        """Actions (N,A) for observations (N,O), drawn with one seed each, and their log-probs (N,): float32
        numpy arrays. `ContractError` for observations of another size than the model's.
        """
        observations = np.asarray(observations, np.float32)
        if observations.shape != (len(seeds), self.model.observation):
            raise ContractError(
                f"the policy takes observations of {self.model.observation} numbers, got an array of shape "
                f"{observations.shape} for {len(seeds)} episodes; set the sizes in the model's address, "
                "`observation` and `action`, to those of the environment"
            )
        device = next(self.model.parameters()).device
        noise = torch.from_numpy(normals(seeds, self.model.action)).to(device)
        actions, logprobs = self.model.act(torch.from_numpy(observations).to(device), noise)
        return actions.cpu().numpy(), logprobs.cpu().numpy()

    def encode(self, group: Group) -> Group:
        """The group, whose trajectories have their steps. `ContractError` for one of texts."""
        if any("actions" not in trajectory.inputs for trajectory in group.trajectories):
            raise self._no_text(f"a trajectory of prompt {group.prompt.id!r} has no actions")
        return group

    @torch.inference_mode()
    def score(self, groups: Sequence[Group], outputs: frozenset[str]) -> list[Mapping[str, list[Any]]]:
        """Requested outputs per group, a list (T) per trajectory: `logprobs`, `entropy`, `values`."""
        groups = [self.encode(group) for group in groups]
        return score_in_batches(
            groups,
            lambda batch: model_outputs(self.model, self.kind, batch, outputs).by_name,
            outputs=outputs,
        )

    def generate(self, requests: Sequence[Request]) -> list[list[Sample]]:
        """`ContractError`: there are no tokens to generate."""
        raise self._no_text("a rollout asked for text")

    def encode_prompt(self, prompt: Prompt) -> list[int]:
        """`ContractError`: there is no tokenizer."""
        raise self._no_text(f"a rollout asked for the tokens of prompt {prompt.id!r}")

    def _no_text(self, what: str) -> ContractError:
        return ContractError(
            f"{what}, and a model of the family {self.model.family['name']!r} reads observations and writes "
            "actions; use a rollout of arrays, such as `control`"
        )


def normals(seeds: Sequence[int], size: int) -> np.ndarray:
    """Standard normal numbers (N, size) in float32, a row for each seed."""
    rows = [np.random.default_rng(seed).standard_normal(size, np.float32) for seed in seeds]
    return np.stack(rows) if rows else np.zeros((0, size), np.float32)


def verify_arrays(
    path: Path, learner: Any, groups: Sequence[Group], *, tokens: int, tolerance: float
) -> float:
    """Largest difference between the log-probs of the learner and those of its saved directory.
    `ContractError` above the tolerance.
    """
    ours = _scored(learner, groups, tokens)
    theirs = ranks.once(lambda: ArrayEngine(path).score(groups, frozenset({"logprobs"})))
    worst = max(
        abs(a - b)
        for mine, saved in zip(ours, theirs, strict=True)
        for one, other in zip(mine, saved["logprobs"], strict=True)
        for a, b in zip(one, other, strict=True)
    )
    if not worst <= tolerance:
        raise ContractError(
            f"{path}: the saved model differs from the trained one by {worst:.2g} in logprobs (at most "
            f"{tolerance} expected); the output is not published"
        )
    return worst


def _scored(learner: Any, groups: Sequence[Group], tokens: int) -> list[list[list[float]]]:
    """A learner's log-probs (T) of every trajectory."""
    wanted = frozenset({"logprobs"})
    with torch.no_grad():
        found = score_in_batches(
            groups, lambda batch: learner(batch, wanted).by_name, outputs=wanted, tokens=tokens
        )
    return [columns["logprobs"] for columns in found]


def probe_arrays(path: Path, groups: Sequence[Group], seed: int) -> list[Group]:
    """Actions that a saved model draws at the observations of the first trajectory of each group, as groups
    of one with the engine's log-probs.
    """
    engine, found = ArrayEngine(path), []
    for number, group in enumerate(groups):
        first = group.trajectories[0]
        observations = first.inputs["observations"]
        seeds = [seed + number * len(observations) + step for step in range(len(observations))]
        actions, logprobs = engine.act(observations, seeds)
        taken = Trajectory(
            first.messages,
            {"observations": observations, "actions": actions.tolist()},
            [True] * len(seeds),
            logprobs.tolist(),
            actor="policy",
        )
        found.append(Group(group.prompt, (taken,)))
    return found
