"""Exact serialisation of nested state (tensors, numbers, strings, groups): safetensors and JSON."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ratchet.components import types
from ratchet.components.errors import DamageError, StoreError
from ratchet.components.storage.store import disk_errors, file_digest, write_atomic

FILES = ("tensors.safetensors", "state.json")


def save_state(folder: Path, state: Mapping[str, Any]) -> None:
    """Write `state` as a directory, atomically (temporary directory, then rename). `StoreError` for a full
    disk, or a key that is neither a text nor a number.
    """
    from safetensors.torch import save_file

    tensors: dict[str, Any] = {}
    skeleton = _split(state, tensors, "")
    storages: set[int] = set()
    for (
        name,
        tensor,
    ) in (
        tensors.items()
    ):  # safetensors takes no views and no two tensors of one storage; copying the rest would cost memory
        if tensor.data_ptr() in storages or tensor.untyped_storage().nbytes() != tensor.nbytes:
            tensors[name] = tensor.clone()
        storages.add(tensor.data_ptr())
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}")
    with disk_errors(f"saving {folder}"):
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        try:
            save_file(tensors, temporary / "tensors.safetensors")
        except Exception as error:
            shutil.rmtree(temporary, ignore_errors=True)
            if "No space left" in str(error):
                raise StoreError(
                    f"saving {folder}: the disk is full; the last checkpoint is untouched"
                ) from error
            raise
        write_atomic(temporary / "state.json", json.dumps(skeleton))
        write_atomic(
            temporary / "sha256.json", json.dumps({name: file_digest(temporary / name) for name in FILES})
        )
        if folder.exists():
            shutil.rmtree(folder)
        os.replace(temporary, folder)


def load_state(folder: Path) -> dict[str, Any]:
    """Read a state of `save_state`. `DamageError`: its bytes changed; `StoreError`: unreadable."""
    from safetensors.torch import load_file

    try:
        for name, known in json.loads((folder / "sha256.json").read_text()).items():
            if file_digest(folder / name) != known:
                raise ValueError(f"the SHA-256 of {name} differs from the one recorded when it was saved")
        tensors = load_file(folder / "tensors.safetensors")
        return _join(json.loads((folder / "state.json").read_text()), tensors)
    except Exception as error:
        if isinstance(error, OSError | MemoryError) and not isinstance(error, FileNotFoundError):
            raise StoreError(f"the checkpoint at {folder} cannot be read: {error}") from error
        raise DamageError(f"the checkpoint at {folder} is damaged: {error}") from error


def _split(value: Any, tensors: dict[str, Any], path: str) -> Any:
    """Move all tensors of a nested value to `tensors`; returns the rest as JSON, with `$tensor`, `$map`,
    `$tuple` and `$record` tags. Other sequences become lists.
    """
    import torch

    if isinstance(value, torch.Tensor):
        while path in tensors:  # keys such as 1 and "1", or "a/b" and a mapping "a" with "b"
            path += "'"
        tensors[path] = value.detach().contiguous()
        return {"$tensor": path}
    if isinstance(value, Mapping):
        if wrong := [k for k in value if not isinstance(k, str | int | float | None)]:
            raise StoreError(f"the state {path or '/'!r} has the key {wrong[0]!r}, which JSON cannot hold")
        return {"$map": [[k, _split(v, tensors, f"{path}/{k}")] for k, v in value.items()]}
    if isinstance(value, (list, tuple)):
        items = [_split(v, tensors, f"{path}/{i}") for i, v in enumerate(value)]
        return {"$tuple": items} if isinstance(value, tuple) else items
    if getattr(types, type(value).__name__, None) is type(value):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        return {"$record": type(value).__name__, "fields": _split(fields, tensors, path)}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return _split(list(value), tensors, path)  # numbers per step in an array
    return value


def _join(value: Any, tensors: Mapping[str, Any]) -> Any:
    """Inverse of `_split`."""
    if isinstance(value, dict):
        if "$tensor" in value:
            return tensors[value["$tensor"]]
        if "$tuple" in value:
            return tuple(_join(v, tensors) for v in value["$tuple"])
        if "$record" in value:
            return getattr(types, value["$record"])(**_join(value["fields"], tensors))
        return {k: _join(v, tensors) for k, v in value["$map"]}
    if isinstance(value, list):
        return [_join(v, tensors) for v in value]
    return value
