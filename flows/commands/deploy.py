"""`ratchet deploy`: apply `flows/deployments.yaml` to a Prefect server."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ratchet.components.errors import ServiceError


def deploy(
    file: Annotated[Path, typer.Option(help="Deployment file.")] = Path("flows/deployments.yaml"),
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the changes without making them.")
    ] = False,
    prune: Annotated[
        bool,
        typer.Option("--prune", help="Delete deployments made by Ratchet that the file no longer contains."),
    ] = False,
) -> None:
    """Create or update work pools, GPU slots, schedules and alerts of a Prefect server (PREFECT_API_URL)."""
    from ratchet.flows.deployments import read

    plan, templates = read(file)
    from httpx import HTTPError
    from prefect.client.orchestration import get_client
    from prefect.exceptions import PrefectHTTPStatusError
    from prefect.settings import PREFECT_API_URL

    from ratchet.flows.changes import changes

    address = PREFECT_API_URL.value()
    if not address:
        raise ServiceError(
            f"{file} is valid, but PREFECT_API_URL is not set; `prefect server start` runs a server on "
            "this machine"
        )
    try:
        with get_client(sync_client=True) as client:
            planned = changes(plan, templates, client, Path.cwd())
            for change in planned:
                left = change.what == "remove" and not prune
                more = "  (not in the file; --prune removes it)" if left else ""
                what = "leave" if left else change.what
                typer.echo(f"{what:<7} {change.kind:<11} {change.name}{more}")
                for line in change.differs:
                    typer.echo(f"{'':<20}{line}")
                if change.carry_out and not dry_run and not left:
                    change.carry_out()
    except PrefectHTTPStatusError as error:
        hint = "; is PREFECT_API_AUTH_STRING right?" if error.response.status_code in (401, 403) else ""
        raise ServiceError(
            f"the Prefect server at {address} refused: {str(error).splitlines()[0]}{hint}"
        ) from error
    except HTTPError as error:
        raise ServiceError(f"the Prefect server at {address} does not answer: {error}") from error
    todo = sum(change.carry_out is not None and (prune or change.what != "remove") for change in planned)
    typer.echo(
        f"{todo} of {len(planned)} would change."
        if dry_run
        else f"{todo} of {len(planned)} changed."
        if todo
        else "Nothing to change."
    )
