"""Which failures of a stage Prefect tries again."""

from __future__ import annotations

import pickle

import pytest
from prefect.states import Completed, Failed

from ratchet.components.errors import RecipeError, ServiceError, StageError, TrainingError
from ratchet.tasks.stages import retryable, stage


@pytest.mark.parametrize(("error", "again"), [
    (StageError("the process died", died=True), True),
    (pickle.loads(pickle.dumps(StageError("the process died", died=True))), True),  # as it comes out of a child
    (ServiceError("MLflow is away"), True),
    (StageError("a bug of ours"), False),
    (RecipeError("no such piece"), False),
    (TrainingError("the loss is nan"), False),
    (ValueError("somebody else's"), False),
])
def test_only_what_a_second_try_can_mend_is_tried_again(error: Exception, again: bool) -> None:
    assert retryable(None, None, Failed(data=error)) is again


def test_what_went_well_is_not_done_twice() -> None:
    assert retryable(None, None, Completed(data=1)) is False
    assert stage.retry_condition_fn is retryable and stage.retries == 1
