"""Imports made by saving a model."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

CODE = """
import sys
from pathlib import Path
from ratchet.components.models.load import load_policy, load_tokenizer, save_model
model = load_policy(Path(sys.argv[1]))
save_model(model, load_tokenizer(Path(sys.argv[1])), Path(sys.argv[2]))
print(sorted({"deepspeed", "mlflow"} & set(sys.modules)))
from accelerate.utils import other
print(other.is_deepspeed_available())
"""


@pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="the extra `scale` is not installed"
)
def test_saving_does_not_import_deepspeed(tiny_home: Path, tmp_path: Path) -> None:
    (model,) = (tiny_home / "store").glob("model_policy-*")
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(model), str(tmp_path / "saved")],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
        check=True,
    )
    assert done.stdout.splitlines() == ["[]", "True"]
    assert (tmp_path / "saved" / "model.safetensors").read_bytes() == (
        model / "model.safetensors"
    ).read_bytes()
