"""Accounts of the team server: a person signs in on the labelling page with name and password of MLflow's
basic authentication (`mlflow server --app-name basic-auth`), which MLflow checks. The account's name is the
annotator's pseudonym.
"""

from __future__ import annotations

import base64
import urllib.error
import urllib.parse
import urllib.request

from ratchet.components.errors import RecipeError, ServiceError, redacted

ANSWER_SECONDS = 10.0


def checked_server(uri: str) -> str:
    """The address of an MLflow server that has accounts; `RecipeError` if it is no server or asks for no
    password, `ServiceError` if it cannot be reached.
    """
    if not uri.startswith(("http://", "https://")):
        raise RecipeError(
            f"--team: MLFLOW_TRACKING_URI: expected the team server's http address, got {redacted(uri)}"
        )
    if _status(uri, "anonymous", None) != 401:
        raise RecipeError(f"--team: {redacted(uri)} has no accounts; start MLflow with --app-name basic-auth")
    return uri


def accepts(uri: str, name: str, password: str) -> bool:
    """Whether the server has an account `name` with this password; `ServiceError` if it does not say."""
    status = _status(uri, name, password)
    if status not in (200, 401):
        raise ServiceError(f"{redacted(uri)} answers {status} to a sign-in")
    return status == 200


def _status(uri: str, name: str, password: str | None) -> int:
    """HTTP status of a request for one's own account, which MLflow grants to every user."""
    query = urllib.parse.urlencode({"username": name})
    request = urllib.request.Request(f"{uri.rstrip('/')}/api/2.0/mlflow/users/get?{query}")
    if password is not None:
        login = base64.b64encode(f"{name}:{password}".encode()).decode()
        request.add_header("Authorization", f"Basic {login}")
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
    except OSError as error:
        raise ServiceError(f"{redacted(uri)} does not answer: {getattr(error, 'reason', error)}") from error
