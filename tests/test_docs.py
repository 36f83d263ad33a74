"""The documentation builds without broken links, and its generated parts are up to date."""

from __future__ import annotations

import doctest
import importlib.util
import json
import re
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
import yaml

from ratchet.components.errors import RecipeError
from ratchet.flows.catalogue import Row

ROOT = Path(__file__).resolve().parent.parent
README = ROOT / "README.md"


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_site_builds_without_broken_links(tmp_path: Path) -> None:
    """With `--quiet` mkdocs drops the warnings before `--strict` counts them."""
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mkdocs",
            "build",
            "--strict",
            "-f",
            str(ROOT / ".mkdocs.yml"),
            "-d",
            str(tmp_path),
        ],
        capture_output=True,
        text=True,
        cwd=ROOT,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "reference" / "pieces" / "index.html").is_file()


def test_readme_is_at_most_9_kB_and_its_generated_blocks_are_fresh(generate: ModuleType) -> None:
    text = README.read_text()
    assert len(text.encode()) <= 9000
    assert generate.filled(text) == text, "stale: run `make docs`"


def test_stored_verdicts_are_well_formed_and_their_table_is_fresh() -> None:
    """Verdicts of earlier definitions are reported as a warning; a wrong format or an edited table fails."""
    from ratchet.flows.claim_records import STORED, claiming, filled, read, states

    stored, page = read(), STORED.with_suffix(".md")
    assert stored and not stored.keys() - set(claiming()), "a verdict on a recipe that claims nothing"
    assert filled(page.read_text(), stored) == page.read_text(), "edited or stale: run docs/generate.py"
    found = {name: state for name, state in states(stored, claiming()).items() if state != "current"}
    if found:
        warnings.warn(f"not current: {found}", stacklevel=1)


def test_the_numbers_of_papers_with_decided_claims_are_those_of_the_stored_verdicts() -> None:
    """The recipes whose control fails are those that docs/testbeds.md names."""
    from ratchet.components.recipes.recipe import written
    from ratchet.flows.claim_records import read

    beds = " ".join((ROOT / "docs" / "testbeds.md").read_text().split())
    found = re.search(r"so the verdicts of (.*?) say little", beds)
    assert found
    weak, recipes, stored = set(re.findall(r"`(\w+)`", found[1])), written(), read()
    decided = {name for name, one in stored.items() if one.verdict != "undecided"}
    cited, of_decided, trusted = (
        {recipes[name].paper for name in names} for names in (stored, decided, decided - weak)
    )
    counts = [len(cited), len(of_decided), len(trusted), len(decided), len(decided - weak)]
    text = " ".join((ROOT / "docs" / "claims.md").read_text().split())
    (said,) = re.findall(
        r"The claims cite (\d+) papers. Of (\d+) papers .*? of (\d+) on a testbed whose control holds.*? "
        r"Of the (\d+) decided claims these are (\d+),",
        text,
    )
    assert list(map(int, said)) == counts, "docs/claims.md: correct the numbers above the table"


def test_family_pages_are_fresh_and_name_every_recipe(generate: ModuleType) -> None:
    from ratchet.components.recipes.recipe import names

    pages, folder = generate.family_pages(), ROOT / "docs" / "methods"
    assert {file.name: file.read_text() for file in folder.iterdir()} == pages, "stale: run docs/generate.py"
    text = "".join(pages.values())
    assert not [name for name in names() if f"\n## {name}\n" not in text]
    assert all(f"({name})" in text for name in pages if name.endswith(".svg"))


def test_intervals_of_a_family_are_drawn_each_at_its_own_scale(generate: ModuleType) -> None:
    row = Row("a − b", -0.25, -0.15, -0.05, -0.1, "undecided")
    drawn = generate.svg([row, Row("c − d", 10.0, 20.0, 40.0, 0.0, "holds")])
    assert drawn.count("<circle") == 2 and "a − b" in drawn and "-0.15 undecided" in drawn
    assert 'x1="555.0" x2="690.0"' in drawn  # 10 to 40 of 40 on the right half, from 510 to 690


def test_recipe_reference_is_fresh_and_has_every_key(generate: ModuleType) -> None:
    page = generate.recipe_reference()
    assert (ROOT / "docs" / "recipe-keys.md").read_text() == page + "\n", "stale: run docs/generate.py"
    assert (
        "| `max_grad_norm` | number > 0 or `null` | `1.0` |" in page
        and '| `cadence` | `round`, `step` | `"round"` |' in page
    )
    assert not [
        key for key in ("zero_stage", "prompts_per_round", "near_threshold") if f"| `{key}` |" not in page
    ]
    assert not re.findall(r"^\| `\w+` \|.*\|  \|$", page, re.M), "a key without a comment in the schema"


def test_piece_and_method_pages_name_every_piece_and_recipe(generate: ModuleType) -> None:
    from ratchet.components.piece import SLOTS, catalogue
    from ratchet.components.recipes.recipe import names

    pieces, methods, readme = generate.piece_reference(), generate.recipe_table(), README.read_text()
    assert not [name for slot in SLOTS for name in catalogue(slot) if f"### {name}\n" not in pieces]
    assert not [name for name in names() if f"`{name}`" not in methods]
    top = {path.stem for path in (ROOT / "flows" / "recipes").glob("*.yaml")}  # those in folders are counted
    assert not [name for name in top if f"`{name}`" not in readme]


PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]


def test_links_of_the_repository_lead_to_files() -> None:
    """On a clone, without the built site. Anchors within pages are checked by the site's build."""
    pages = [*PAGES, *(ROOT / "docs" / "methods").glob("*.md")]
    links = [
        (page, link)
        for page in pages
        for link in re.findall(r"\]\(([^)\s#]+)", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL))
        if ":" not in link
    ]
    assert len(links) > 50
    assert not [f"{page.name}: {link}" for page, link in links if not (page.parent / link).exists()]


def test_the_page_of_methods_links_every_family() -> None:
    text = (ROOT / "docs" / "methods.md").read_text()
    families = [page.name for page in (ROOT / "docs" / "methods").glob("*.md")]
    assert families and not [name for name in families if f"](methods/{name})" not in text]


def whole_recipes(page: Path) -> list[str]:
    """The YAML blocks of a page that are recipes, not parts of one."""
    blocks = re.findall(r"```yaml\n(.*?)```", page.read_text(), re.DOTALL)
    return [block for block in blocks if re.search(r"^schema: 1$", block, re.MULTILINE)]


ROWS: dict[str, Callable[[int], dict[str, object]]] = {
    "pairs": lambda i: {"prompt": f"Name river {i}.", "chosen": f"It is {i}.", "rejected": f"No {i}."},
    "held_out_pairs": lambda i: {"prompt": f"Name hill {i}.", "chosen": f"It is {i}.", "rejected": "No."},
    "part_pairs": lambda i: {**ROWS["pairs"](i), "part": "held_out" if i % 4 == 0 else "pairs"},
    "part_prompts": lambda i: {**ROWS["prompts"](i), "part": "prompts"},
    "prompts": lambda i: {"prompt": f"Describe the town with number {i}."},
    "conversations": lambda i: {"prompt": f"Name river {i}.", "response": f"It is {i}."},
    "thumbs": lambda i: {"prompt": f"Name river {i}.", "completion": f"It is {i}.", "label": i % 2 == 0},
    "sums": lambda i: {"prompt": f"{i} + 1", "answer": f"{i + 1}", "part": "hard" if i % 3 == 0 else "train"},
}
"""Rows of the data files that recipes of the documentation name."""


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_whole_recipes_of_the_documentation_are_checked_and_planned(page: Path, tmp_path: Path) -> None:
    """Keys, pieces, options and columns; that their data fill the splits; the stages. Models of the Hub that
    they name do not exist.
    """
    from ratchet.components.recipes.check_data import check_files
    from ratchet.components.recipes.recipe import inherited_sizes
    from ratchet.tasks.pipeline import Pipeline

    for name, row in ROWS.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row(i)) + "\n" for i in range(3500)))
    for number, block in enumerate(whole_recipes(page)):
        file = tmp_path / f"example_{number}.yaml"
        file.write_text(block)
        pipeline = Pipeline.open(str(file), home=tmp_path / "out")
        assert pipeline.recipe.about and pipeline.stages
        checked = check_files(pipeline.recipe, warnings=inherited_sizes(str(file)))
        assert not checked.warnings, f"{page.name}, {pipeline.recipe.about}"


def test_pages_have_whole_recipes() -> None:
    pages = ("concepts", "data", "getting-started", "methods", "recipes")
    assert all(whole_recipes(ROOT / "docs" / f"{page}.md") for page in pages)


def test_profiles_of_the_documentation_load_and_have_the_memory(tmp_path: Path) -> None:
    from ratchet.components.recipes.recipe import load
    from ratchet.flows.commands.estimate import check_fits
    from ratchet.tasks.pipeline import Pipeline

    text = (ROOT / "docs" / "scale.md").read_text()
    blocks = re.findall(r"```yaml\n# (\w+\.yaml)(.*?)```", text, re.DOTALL)
    assert [name for name, _ in blocks] == ["gpu24.yaml", "cpu32.yaml"]
    for name, block in blocks:
        (tmp_path / name).write_text("#" + block)
        profile = load("instruct", profile=str(tmp_path / name))[1]
        assert profile.precision == "bfloat16" and profile.tokens_per_microbatch in (4096, 8192)
    pipeline = Pipeline.open("instruct", home=tmp_path / "out", profile=str(tmp_path / "gpu24.yaml"))
    check_fits(pipeline)
    with pytest.raises(RecipeError, match="one 24 GB GPU"):
        check_fits(
            Pipeline.open(
                "rlhf_workflow_8b",
                home=tmp_path / "out",
                profile=str(tmp_path / "gpu24.yaml"),
                overrides=["data.source=generate:tiny_pairs?size=600&seed=1"],
            )
        )


def test_the_objective_of_the_contributing_page_passes_its_own_example(tmp_path: Path) -> None:
    from ratchet.components.types import Batch, Outputs

    text = (ROOT / "docs" / "contributing.md").read_text()
    (block,) = re.findall(r"```python\n(# components/pieces/objectives/.*?)```", text, re.DOTALL)
    known: dict[str, object] = {"__name__": "example"}
    exec(compile(block, "example.py", "exec"), known)
    row = torch.zeros(1, dtype=torch.long)
    batch = Batch({}, torch.ones(1, 2, dtype=torch.bool), {}, row, row, ("p",))
    known |= {"Outputs": Outputs, "batch": batch}
    test = doctest.DocTestParser().get_doctest(
        known["large_advantages"].__doc__ or "", known, "large_advantages", None, None
    )
    assert doctest.DebugRunner().run(test).attempted == 3


def test_every_page_is_in_the_navigation() -> None:
    navigation = str(yaml.safe_load((ROOT / ".mkdocs.yml").read_text())["nav"])
    assert not [page.name for page in (ROOT / "docs").glob("*.md") if f"'{page.name}'" not in navigation]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_commands_in_the_documentation_exist(page: Path) -> None:
    from typer.main import get_command

    from ratchet.flows.cli import app

    known: dict[str, object] = getattr(get_command(app), "commands")  # noqa: B009
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
    text = page.read_text()
    assert not set(re.findall(r"(?:^|`)ratchet ([a-z][a-z-]*)", text, re.M)) - set(known)
    assert not set(re.findall(r"(?:^|`)make ([a-z][a-z-]*)", text, re.M)) - targets
