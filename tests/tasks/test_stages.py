"""Which stage failures Prefect retries."""

from __future__ import annotations

import pickle

import pytest
from prefect.states import Completed, Failed

from ratchet.components.errors import RecipeError, ServiceError, StageError, TrainingError
from ratchet.tasks.stages import retryable, stage


@pytest.mark.parametrize(
    ("error", "again"),
    [
        (StageError("the process died", died=True), True),
        (
            pickle.loads(pickle.dumps(StageError("the process died", died=True))),
            True,
        ),  # as it comes out of a child
        (ServiceError("MLflow is away"), True),
        (StageError("a bug of ours"), False),
        (RecipeError("no such piece"), False),
        (TrainingError("the loss is nan"), False),
        (ValueError("somebody else's"), False),
    ],
)
def test_only_transient_errors_are_retried(error: Exception, again: bool) -> None:
    assert retryable(None, None, Failed(data=error)) is again


def test_finished_stage_is_not_repeated() -> None:
    assert retryable(None, None, Completed(data=1)) is False
    assert stage.retry_condition_fn is retryable and stage.retries == 1
