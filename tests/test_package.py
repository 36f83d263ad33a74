"""The wheel: one package with all modules and data files, which runs outside the repository."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("flows", "tasks", "components")


def test_wheel_is_one_package_that_runs_anywhere(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    for name in (*FOLDERS, "infra/package"):
        shutil.copytree(
            ROOT / name,
            tmp_path / name,
            symlinks=True,
            ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"),
        )
    build = "from setuptools import build_meta; build_meta.build_wheel('wheels')"
    subprocess.run([sys.executable, "-c", build], cwd=tmp_path, check=True, capture_output=True)
    with zipfile.ZipFile(next((tmp_path / "wheels").glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
        wheel.extractall(tmp_path / "site")
    assert {name.split("/")[0] for name in names if "dist-info" not in name} == {"ratchet"}
    ours = {
        f"ratchet/{path.relative_to(ROOT)}"
        for folder in FOLDERS
        for path in (ROOT / folder).rglob("*")
        if path.suffix in (".py", ".j2") or (path.suffix == ".yaml" and "recipes" in path.parts)
    }
    assert not ours - names, sorted(ours - names)
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    code = "import ratchet; print(ratchet.__file__); ratchet.load_recipe('sft').check(home='out')"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path / "wheels", env=env, capture_output=True, text=True
    )
    assert done.stdout.strip() == str(tmp_path / "site" / "ratchet" / "__init__.py"), done.stderr
