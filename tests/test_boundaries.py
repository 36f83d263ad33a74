"""Import rules: components import no platform, the core names no method, light modules import nothing
heavy.
"""

from __future__ import annotations

import ast
import graphlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ratchet.components.piece import SLOTS, catalogue

ROOT = Path(__file__).resolve().parent.parent
PLATFORMS = {"prefect", "mlflow", "dvc", "great_expectations", "ratchet.flows", "ratchet.tasks"}
CORE = [
    "trainer.py",
    "step_loss.py",
    "loop.py",
    "packing.py",
    "store.py",
    "run.py",
    "state.py",
    "types.py",
    "protocols.py",
]


def imports(path: Path, *, typing: bool = True) -> set[str]:
    """The modules that a file imports, within functions too; without `typing` not those for annotations
    alone.
    """
    found, tree = set(), ast.parse(path.read_text())
    unread = {
        part
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for part in ast.walk(node)
    }
    for node in (node for node in ast.walk(tree) if typing or node not in unread):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize(
    "path", sorted((ROOT / "components").rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT))
)
def test_components_import_no_platform(path: Path) -> None:
    assert (
        not {part for name in imports(path) for part in (name.split(".")[0], ".".join(name.split(".")[:2]))}
        & PLATFORMS
    )


def test_components_name_no_platform() -> None:
    """Nor in a string, a comment or a template."""
    named = re.compile("prefect|mlflow|\\bdvc\\b|great.expectations", re.IGNORECASE)
    texts = {
        path: path.read_text()
        for path in (ROOT / "components").rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }
    assert not [(path, found[0]) for path, text in texts.items() if (found := named.search(text))]


def test_no_import_cycle() -> None:
    """Of runtime imports, including those within functions."""
    files = {
        ".".join(("ratchet", *path.relative_to(ROOT).with_suffix("").parts)).removesuffix(".__init__"): path
        for folder in ("components", "tasks", "flows")
        for path in (ROOT / folder).rglob("*.py")
    }
    order = graphlib.TopologicalSorter(
        {name: imports(path, typing=False) & files.keys() - {name} for name, path in files.items()}
    ).static_order()
    assert set(order) == set(files), "a cycle raises"


def test_the_core_imports_no_piece() -> None:
    """A piece is found by the name that a recipe gives it."""
    core = [
        path
        for path in (ROOT / "components").rglob("*.py")
        if path.relative_to(ROOT / "components").parts[0] != "pieces"
    ]
    assert len(core) > 100
    assert not [
        (str(path), name)
        for path in core
        for name in imports(path)
        if name.startswith("ratchet.components.pieces")
    ]


def test_everything_is_imported_as_the_one_package() -> None:
    """Imported by its folder's name (which works in the checkout's root), a module and its classes would
    exist twice.
    """
    folders = {path.name for path in (ROOT / "infra" / "package" / "ratchet").iterdir() if path.is_symlink()}
    assert folders == {"flows", "tasks", "components"}
    files = [file for folder in (*folders, "benchmarks", "tests") for file in (ROOT / folder).rglob("*.py")]
    assert not [str(file) for file in files if {name.split(".")[0] for name in imports(file)} & folders]


@pytest.mark.parametrize(
    "path", sorted((ROOT / "flows").rglob("*.py")), ids=lambda p: str(p.relative_to(ROOT))
)
def test_flows_name_no_piece_folder(path: Path) -> None:
    assert not [name for name in imports(path) if name.startswith("ratchet.components.pieces")]


def test_every_module_is_in_a_room() -> None:
    def loose(folder: str) -> set[str]:
        return {path.stem for path in (ROOT / folder).glob("*.py")} - {"__init__"}

    assert loose("components") == {"types", "protocols", "errors", "piece"}
    assert loose("tasks") == {"stages", "pipeline"}
    assert {folder for slot in SLOTS.values() for folder in slot} == {
        path.name for path in (ROOT / "components" / "pieces").iterdir() if path.name[0] != "_"
    }


@pytest.mark.parametrize("name", CORE)
def test_the_core_names_no_piece(name: str) -> None:
    words = {
        word
        for node in ast.walk(ast.parse(next((ROOT / "components").rglob(name)).read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for word in [node.value]
    }
    quantities = {"entropy", "kl", "value"}  # names of numbers too
    methods = {piece for slot in ("objective", "select", "rollout") for piece in catalogue(slot)} - quantities
    assert not words & methods


def test_modules_are_short() -> None:
    """Under 300 lines, so that one can be read at a sitting; the table of instruction families is longer."""
    files = [path for part in ("components", "tasks", "flows") for path in (ROOT / part).rglob("*.py")]
    lines = {str(path.relative_to(ROOT)): path.read_text().count("\n") for path in files}
    table = lines.pop("components/data/instructions/families.py")
    assert table > 300 and {name: n for name, n in lines.items() if n >= 300} == {}


def test_checking_a_recipe_imports_nothing_heavy() -> None:
    code = (
        "import sys; from ratchet.components.recipes.recipe import load, names; [load(n) for n in names()];"
        "print([m for m in ('torch', 'transformers', 'prefect', 'mlflow', 'pandas', 'sklearn') if m in "
        "sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "[]"


def test_help_imports_little() -> None:
    """It takes half a second, most of it Python, typer and rich starting. Modules are counted,
    since time depends on the machine. A platform adds hundreds.
    """
    code = (
        "import sys; sys.argv = ['ratchet', '--help']; from ratchet.flows.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: status = end.code\n"
        "heavy = {'torch', 'prefect', 'mlflow', 'numpy', 'yaml'} & set(sys.modules)\n"
        "print(status, len(sys.modules) < 600, sorted(heavy), len(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stderr.startswith("0 True [] "), done.stderr
    assert "recipes" in done.stdout


def test_programs_in_strings_of_tests_import_what_exists() -> None:
    """Processes that tests start run them, many in slow tests only, and no type checker reads them."""
    pattern = re.compile(r"^\s*from (ratchet[\w.]*) import ([\w, ]+)", re.MULTILINE)
    found = {
        (module, name.split()[0])
        for file in (ROOT / "tests").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for module, names in pattern.findall(node.value)
        for name in names.split(",")
    }
    assert len(found) > 20
    assert not [
        f"{module}.{name}"
        for module, name in sorted(found)
        if not hasattr(importlib.import_module(module), name)
        and importlib.util.find_spec(f"{module}.{name}") is None
    ]
