"""Hugging Face Hub access through `huggingface_hub`: resolving revisions and downloading into its cache."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ratchet.components.data.published import CARD, patterns_of
from ratchet.components.errors import SourceError
from ratchet.components.stages.progress import watch_download


def download(rest: str, config: str | None = None) -> Path:
    """Download the file or folder of `org/name[@revision][!file or folder]` to the cache. For a data set with
    `config`, only its card and that configuration's files. `SourceError` on failure.
    """
    request, inner = repository(rest), rest.partition("!")[2].rstrip("/")
    from huggingface_hub import constants, hf_hub_download, snapshot_download
    from huggingface_hub.errors import EntryNotFoundError
    from huggingface_hub.file_download import repo_folder_name

    cache = Path(constants.HF_HUB_CACHE) / repo_folder_name(
        repo_id=request["repo_id"], repo_type=request["repo_type"]
    )
    with _hub_errors(rest, request), watch_download(cache):
        if "." in inner.rpartition("/")[2]:
            return Path(hf_hub_download(filename=inner, **request))
        wanted = [f"{inner}/*"] if inner else None
        if config is not None:
            card = ""
            with contextlib.suppress(EntryNotFoundError):
                card = Path(
                    hf_hub_download(filename="/".join(filter(None, (inner, CARD))), **request)
                ).read_text(encoding="utf-8", errors="replace")
            files = [one for some in patterns_of(card, config).values() for one in some] or [f"{config}/*"]
            wanted = ["/".join(filter(None, (inner, one.replace("**/", "")))) for one in [CARD, *files]]
        found = Path(snapshot_download(**request, allow_patterns=wanted)) / inner
    if not found.is_dir() or not any(found.iterdir()):
        raise SourceError(f"hub:{rest}: {request['repo_id']} has no file or folder {inner or config!r}")
    return found


def commit(rest: str) -> str | None:
    """The commit that a `hub:` address resolves to now (a branch or tag moves), None if the Hub cannot say.
    `SourceError` as in `download`.
    """
    request = repository(rest)
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    with _hub_errors(rest, request):
        try:
            info = HfApi(endpoint=request["endpoint"]).repo_info(
                request["repo_id"], revision=request["revision"], repo_type=request["repo_type"], timeout=10
            )
        except HfHubHTTPError as error:
            if error.response.status_code < 500:
                raise
            return None
        except Exception:  # network libraries raise various exceptions
            return None
    return str(info.sha)


def repository(rest: str) -> dict[str, Any]:
    """Arguments of `huggingface_hub` calls for an address."""
    match = re.fullmatch(r"(?:(datasets|models)/)?([\w.-]+/[\w.-]+)(?:@([\w./-]+))?", rest.partition("!")[0])
    if not match:
        raise SourceError(
            f"hub:{rest}: expected hub:org/name, optionally with @revision and !file (datasets/org/name "
            "for data)"
        )
    kind, repository, revision = match.groups()
    return {
        "repo_id": repository,
        "revision": revision,
        "repo_type": "dataset" if kind == "datasets" else "model",
        "endpoint": os.environ.get("HF_ENDPOINT"),
    }  # read at call time; the library reads it once at import


@contextlib.contextmanager
def _hub_errors(rest: str, request: dict[str, Any]) -> Iterator[None]:
    """Convert exceptions of `huggingface_hub` to a `SourceError` with the address."""
    from huggingface_hub.errors import (
        EntryNotFoundError,
        GatedRepoError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    hub, repository = request["endpoint"] or "the hub", request["repo_id"]
    try:
        yield
    except SourceError as error:
        raise SourceError(f"hub:{rest}: {error}") from None
    except LocalEntryNotFoundError as error:
        raise SourceError(
            f"hub:{rest}: cannot download from {hub} and it is not in the cache; "
            "check the connection or HF_ENDPOINT"
        ) from error
    except GatedRepoError as error:
        raise SourceError(
            f"hub:{rest}: {repository} is gated; accept its terms and log in with `hf auth login`"
        ) from error
    except RevisionNotFoundError as error:
        raise SourceError(f"hub:{rest}: {repository} has no revision {request['revision']!r}") from error
    except RepositoryNotFoundError as error:
        raise SourceError(
            f"hub:{rest}: no {request['repo_type']} repository {repository!r} (or it is private)"
        ) from error
    except EntryNotFoundError as error:
        raise SourceError(f"hub:{rest}: {repository} has no file {rest.partition('!')[2]!r}") from error
    except Exception as error:  # network libraries raise various exceptions
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise SourceError(f"hub:{rest}: cannot download from {hub}: {reason}") from error
