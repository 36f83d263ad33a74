"""YAML as recipes, profiles and deployments are written: no key twice, numbers such as 1e-5 without a point."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from ratchet.components.errors import RecipeError

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _Loader(_Base):
    """YAML whose keys are text as written and stand once, and whose 1e-5 is a number."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[str, Any]:
        self.flatten_mapping(node)
        found: dict[str, Any] = {}
        for key, value in node.value:
            if key.value in found:
                raise yaml.constructor.ConstructorError(None, None, f"the key {key.value!r} stands twice", key.start_mark)
            found[key.value] = self.construct_object(value, deep=True)
        return found


_Loader.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), list("-+0123456789"))
_Loader.add_constructor("tag:yaml.org,2002:map", lambda loader, node: loader.construct_mapping(node))


def parse_yaml(text: str) -> Any:
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def read_yaml(path: Path, missing: str) -> Any:
    """What a YAML file holds. `RecipeError`: `missing` when there is none, where it breaks when it is not YAML."""
    try:
        return parse_yaml(path.read_text())
    except FileNotFoundError:
        raise RecipeError(missing) from None
    except yaml.YAMLError as error:
        raise RecipeError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
