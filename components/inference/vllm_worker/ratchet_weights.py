"""Weight transfer of vLLM from files in memory. Runs inside vLLM's worker processes, whose environment need
not hold Ratchet: this module imports vLLM and torch only.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import final

import torch
from safetensors import safe_open
from vllm.distributed.weight_transfer import WeightTransferEngine, WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload

BACKEND = "ratchet_files"


@dataclass
class Files(WeightTransferUpdateInfo):
    """Paths of the safetensors files of a model, in checkpoint format."""

    files: Sequence[str] = field(default_factory=list)


@final
class FileTransfer(WeightTransferEngine[WeightTransferInitInfo, Files]):
    """Loads all weights of the model in place; each worker maps the files and takes its shard."""

    init_info_cls = WeightTransferInitInfo
    update_info_cls = Files

    def init_transfer_engine(self, init_info: WeightTransferInitInfo) -> None:
        """Nothing to set up: the files are found by their paths."""

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, object]) -> None:
        self.receive_weights(self.parse_update_info(update_info))
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: Files) -> None:
        tied = self.model_config.hf_config.tie_word_embeddings
        self.model.load_weights(tensors(update_info.files, untie=not tied))

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Nothing to release."""


def tensors(files: Sequence[str], *, untie: bool) -> Iterator[tuple[str, torch.Tensor]]:
    """Names and tensors of the files. `untie`: with the input embedding as `lm_head.weight` too, if the files
    have no such weight.
    """
    embedding, head = None, False
    for file in files:
        with safe_open(file, "pt") as weights:
            for name in weights.keys():  # noqa: SIM118  no mapping
                tensor = weights.get_tensor(name)
                embedding = tensor if name.endswith("embed_tokens.weight") else embedding
                head = head or name == "lm_head.weight"
                yield name, tensor
    if untie and not head and embedding is not None:
        yield "lm_head.weight", embedding


WeightTransferEngineFactory.register_engine(BACKEND, FileTransfer)


class Registration:
    """vLLM imports the module of this class (`worker_extension_cls`) in each worker, which registers the
    weight transfer above. It adds nothing to the worker.
    """
