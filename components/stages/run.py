"""Entry point of one stage: `python -m ratchet.components.stages.run request.json`, or `execute(request)` in
a child process.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ratchet.components.stages import STAGES
from ratchet.components.stages.job import run_job
from ratchet.components.types import Artifact


def execute(request: Mapping[str, Any]) -> dict[str, Any]:
    """Run the stage function named in the request and return its metadata."""
    return run_job(getattr(importlib.import_module(STAGES[request["does"]]), request["does"]), request)


def as_request(
    does: str, options: Mapping[str, Any], inputs: Mapping[str, Artifact], work: Path
) -> dict[str, Any]:
    """A JSON-serialisable request."""
    return {
        "does": does,
        "options": options,
        "work": str(work),
        "inputs": {
            name: {
                "kind": a.kind,
                "path": str(a.path),
                "digest": a.digest,
                "parents": list(a.parents),
                "meta": dict(a.meta),
            }
            for name, a in inputs.items()
        },
    }


if __name__ == "__main__":
    print(json.dumps(execute(json.loads(Path(sys.argv[1]).read_text()))))
