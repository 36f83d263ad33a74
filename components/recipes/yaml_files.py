"""YAML of recipes, profiles and deployments: duplicate keys are errors, and 1e-5 is a number."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from ratchet.components.errors import RecipeError


def folder() -> Path:
    """Folder of the shipped recipes."""
    return Path(__file__).resolve().parents[2] / "flows" / "recipes"


_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def shipped() -> dict[str, Path]:
    """File of each shipped recipe by its name: in the folder of recipes or in a subfolder of a family."""
    files = [*folder().glob("*.yaml"), *folder().glob("*/*.yaml")]
    return {p.stem: p for p in sorted(files) if p.parent.name not in ("bases", "profiles")}


class _Loader(_Base):
    """YAML loader with string keys, an error for duplicate keys, and floats without a decimal point."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[str, Any]:
        own: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    None, None, "expected a word as a key, got a list or mapping", key.start_mark
                )
            if key.value in own:
                raise yaml.constructor.ConstructorError(
                    None, None, f"duplicate key {key.value!r}", key.start_mark
                )
            own.add(key.value)
        self.flatten_mapping(node)  # puts the keys of `<<` first, which own ones replace
        return {key.value: self.construct_object(value, deep=True) for key, value in node.value}


class _Dumper(yaml.SafeDumper):
    """YAML dumper that quotes texts which `_Loader` would read as floats."""


for one in (_Loader, _Dumper):
    one.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789")
    )
_Loader.add_constructor("tag:yaml.org,2002:map", lambda loader, node: loader.construct_mapping(node))


def parse_yaml(text: str) -> Any:
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def dump_yaml(value: Any) -> str:
    """YAML that `parse_yaml` reads as `value`: mappings with texts as keys, lists and plain values."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=110)


def read_yaml(path: Path, missing: str) -> Any:
    """Parse a YAML file. `RecipeError` with the text `missing` if it does not exist, with the reason if it
    cannot be read, or with the position of a byte that is not UTF-8 or of a syntax error.
    """
    try:
        return parse_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RecipeError(missing) from None
    except OSError as error:
        raise RecipeError(f"{path}: cannot be read as a file: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise RecipeError(
            f"{path}: not UTF-8 text, at byte {error.start}: {error.object[error.start]:#04x}; save the file "
            "as UTF-8"
        ) from None
    except yaml.YAMLError as error:
        raise RecipeError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
