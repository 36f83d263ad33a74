"""Selection of the inference engine from `profile.engine`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, final

from ratchet.components.errors import ContractError
from ratchet.components.inference.agreement import FEW, as_groups, gap, require_agreement
from ratchet.components.recipes.families import family_of
from ratchet.components.text.codec import Codec
from ratchet.components.types import Group, Request, Sample

if TYPE_CHECKING:
    from torch.nn import Module

    from ratchet.components.inference.torch import TorchEngine
    from ratchet.components.inference.vllm import Backend, VllmEngine
    from ratchet.components.protocols import ModelEngine
    from ratchet.components.text.contract import Contract
    from ratchet.components.text.tokenizer import Tokenizer

Kind = Literal["policy", "policy_with_value", "reward"]
SAMPLE = ("demonstrate", "rollout", "improve", "answers")
"""Kinds of stages that generate. The others run without vLLM."""


def engine_of(profile: Mapping[str, Any], path: Path, kind: Kind = "policy") -> ModelEngine:
    """The inference engine for a model directory under a profile.

    With `engine: vllm`, vLLM generates and the torch engine scores. Scores enter losses and must match the
    trainer's arithmetic; vLLM has no reward heads (ours pool the mean), values or entropies, and its
    log-probs are rounded differently.
    """
    if family := family_of(path):
        if profile["engine"] != "torch":
            raise ContractError(
                f"{path}: a model of the family {family['name']!r} acts with `engine: torch`, got "
                f"{profile['engine']!r}"
            )
        from ratchet.components.inference.arrays import ArrayEngine

        return ArrayEngine(path, kind=kind, threads=profile["threads"])  # pyright: ignore[reportReturnType]
    if profile["engine"] == "torch" or kind == "reward":
        return _torch(profile, path, kind)
    return SplitEngine(profile, path, kind)


def ready(profile: Mapping[str, Any]) -> None:
    """`ContractError` if this machine lacks the engine of the profile. Imports nothing heavy."""
    options = profile["vllm"]
    if profile["engine"] != "vllm" or options["server"]:
        return
    if options["python"]:
        if not Path(options["python"]).is_file():
            raise ContractError(
                f"`vllm.python`: {options['python']} does not exist; give the python of an environment "
                "with vllm"
            )
        return
    from ratchet.components.inference.vllm import require_vllm

    require_vllm()


def sampler(profile: Mapping[str, Any], path: Path) -> VllmEngine:
    """A vLLM engine for this model: in this process, or behind a server that the profile names or that is
    started here.
    """
    from ratchet.components.inference.vllm import InProcess, VllmEngine

    options, rows = profile["vllm"], profile["max_num_seqs"]
    if options["server"] or options["python"]:
        from ratchet.components.inference.server import Server

        backend: Backend = Server(options, rows=rows)
    else:
        backend = InProcess(options, rows=rows)
    return VllmEngine(path, backend, untie=options["untie"], scratch=options["scratch"])


@final
class SplitEngine(Codec):
    """Generates with vLLM, scores with torch; each is loaded at first use. After each weight update, the
    first answers are scored by both engines; a log-prob mismatch beyond rounding is a `ContractError`.
    """

    def __init__(self, profile: Mapping[str, Any], path: Path, kind: Kind) -> None:
        self.profile, self.kind = profile, kind
        self.sampler, self._scorer = sampler(profile, path), None
        self.path, self._agreed = Path(path), False

    def load(self, path: Path, weights: str = "") -> None:
        """Load the weights of a model directory into both engines."""
        self.path, self._agreed = Path(path), False
        self.sampler.load(path, weights)
        if self._scorer:
            self._scorer.load(path, weights)

    @property
    def scorer(self) -> TorchEngine:
        """The torch engine with the same weights."""
        if self._scorer is None:
            self._scorer = _torch(self.profile, self.path, self.kind)  # pyright: ignore[reportArgumentType]
        return self._scorer

    @property
    def weights(self) -> str:
        return self.sampler.weights

    @property
    def contract(self) -> Contract:
        return self.sampler.contract

    @property
    def model(self) -> Module:
        """The torch model, read by reference updates."""
        return self.scorer.model

    @property
    def tokenizer(self) -> Tokenizer:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.sampler.tokenizer

    def generate(self, requests: Sequence[Request]) -> list[list[Sample]]:
        answers = self.sampler.generate(requests)
        if not self._agreed and requests:
            few = as_groups(requests[:FEW], answers[:FEW])
            require_agreement(gap(few, self.score(few, frozenset({"logprobs"}))), self.profile)
            self._agreed = True
        return answers

    def score(self, groups: Sequence[Group], outputs: frozenset[str]) -> list[Mapping[str, list[Any]]]:
        return self.scorer.score(groups, outputs)


def _torch(profile: Mapping[str, Any], path: Path, kind: Kind) -> TorchEngine:
    from ratchet.components.inference.torch import TorchEngine

    return TorchEngine(
        path,
        rows=profile["max_num_seqs"],
        kind=kind,
        threads=profile["threads"],
        precision=profile["precision"],
        tokens=profile["tokens_per_microbatch"],
    )
