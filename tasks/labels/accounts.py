"""Accounts of the team server: a person signs in on the labelling page with name and password of MLflow's
basic authentication (`mlflow server --app-name basic-auth`), which MLflow checks. The account's name is the
annotator's pseudonym.
"""

from __future__ import annotations

import httpx

from ratchet.components.errors import RecipeError, ServiceError, redacted


def checked_server(uri: str) -> str:
    """The address of an MLflow server that has accounts; `RecipeError` if it is no server or asks for no
    password, `ServiceError` if it cannot be reached.
    """
    if not uri.startswith(("http://", "https://")):
        raise RecipeError(
            f"--team: MLFLOW_TRACKING_URI: expected the team server's http address, got {redacted(uri)}"
        )
    if _status(uri, "anonymous") != 401:
        raise RecipeError(f"--team: {redacted(uri)} has no accounts; start MLflow with --app-name basic-auth")
    return uri


def accepts(uri: str, name: str, password: str) -> bool:
    """Whether the server has an account `name` with this password; `ServiceError` if it does not say."""
    status = _status(uri, name, (name, password))
    if status not in (200, 401):
        raise ServiceError(f"{redacted(uri)} answers {status} to a sign-in")
    return status == 200


def _status(uri: str, name: str, login: tuple[str, str] | None = None) -> int:
    """HTTP status of a request for one's own account, which MLflow grants to every user."""
    address, query = f"{uri.rstrip('/')}/api/2.0/mlflow/users/get", {"username": name}
    try:
        answer = httpx.get(address, params=query, auth=login, timeout=10, follow_redirects=True)
        return answer.status_code
    except httpx.HTTPError as error:
        raise ServiceError(f"{redacted(uri)} does not answer: {error}") from error
