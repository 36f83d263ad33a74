"""Read a run: its results, metrics and groups as pandas, its models as torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from ratchet.components.errors import RecipeError, nearest
from ratchet.components.storage.store import read_manifest
from ratchet.flows.reward_scores import RewardModel
from ratchet.tasks.tracking.outcome import outcome, short_result, stage_cell
from ratchet.tasks.tracking.results import with_intervals

if TYPE_CHECKING:
    import pandas as pd
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

State = Literal["running", "interrupted", "waiting", "finished", "stopped", "failed"]


class Run:
    """Reader of a run directory, without a cache; returned by `ratchet.run`, `load_run` and `runs`."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path).resolve()
        if not (self.path / "run.json").is_file():
            raise RecipeError(
                f"{self.path} is no run: it has no run.json; `ratchet.runs(home)` lists the runs of a home"
            )

    @property
    def name(self) -> str:
        """Recipe name and a digest of the stages' keys: `instruct-1a2b3c4d`."""
        return self.path.name

    @property
    def home(self) -> Path:
        """The directory that holds the store and all runs."""
        return self.path.parent.parent

    @property
    def state(self) -> State:
        """running, interrupted (its process died), finished, stopped (by a person) or failed."""
        return cast(State, outcome(self.path)["state"])

    @property
    def error(self) -> str | None:
        """Error message of a failed run, otherwise None."""
        return outcome(self.path)["error"]

    @property
    def log(self) -> Path | None:
        """Path of the failed stage's log, otherwise None."""
        log = outcome(self.path)["log"]
        return Path(log) if log else None

    @property
    def verdict(self) -> str:
        """Short result of the gates and the comparison with the champion; empty without either."""
        return short_result(outcome(self.path))

    @property
    def registered(self) -> dict[str, str]:
        """Stage → `model:version` in the MLflow registry; empty if nothing was registered."""
        return dict(outcome(self.path)["registered"])

    @property
    def recipe(self) -> str:
        """The recipe and the hardware profile of the run as YAML, every default written out."""
        return (self.path / "recipe.yaml").read_text()

    @property
    def report(self) -> Path | None:
        """The HTML report of the evaluation; None before it is made."""
        file = self.path / "stages" / "evaluate" / "report.html"
        return file.resolve() if file.is_file() else None

    def __repr__(self) -> str:
        return f"Run({self.name!r}, {self.state}{f', {self.verdict}' if self.verdict else ''})"

    # --- results ---

    def stages(self) -> pd.DataFrame:
        """One row a planned stage, in order. Columns: `stage`, `made` (bool), `seconds` (float, NaN if it is
        not made), `result` (text), `path` (the directory of its product, None if it is not made).
        """
        import pandas as pd

        rows = [
            (
                stage["name"],
                stage["made"],
                stage["meta"].get("seconds", float("nan")),
                stage_cell(stage["meta"]),
                self.stage(stage["name"]) if stage["made"] else None,
            )
            for stage in outcome(self.path)["stages"]
        ]
        return pd.DataFrame(rows, columns=["stage", "made", "seconds", "result", "path"])

    def metrics(self, stage: str | None = None) -> pd.DataFrame:
        """Training metrics of the stages, one row per step. Columns: `stage`, `step` (from 1), `time` (UTC)
        and one per metric (same names as in MLflow), NaN where it was not logged at that step. `stage`
        selects one stage.

        Raises `RecipeError` for a stage that is unknown or not finished.
        """
        import pandas as pd

        made = [one["name"] for one in outcome(self.path)["stages"] if one["made"]]
        rows = [
            {"stage": name, "step": line["step"], "time": line["time"], **line["metrics"]}
            for name in (made if stage is None else [stage])
            if (file := self.stage(name) / "metrics.jsonl").is_file()
            for line in map(json.loads, file.read_text().splitlines())
        ]
        frame = pd.DataFrame(rows) if rows else pd.DataFrame(columns=["stage", "step", "time"])
        return frame.assign(time=pd.to_datetime(frame["time"], unit="s", utc=True))

    def results(self) -> pd.DataFrame:
        """The numbers of the evaluation, one row a metric, indexed by its name (`final.length`). Columns:
        `value`, and `low` and `high`, the ends of its 95 % interval, NaN where it has none.

        Raises `RecipeError` if the run is not evaluated yet.
        """
        import pandas as pd

        rows = with_intervals(self._evaluation["metrics"])
        return pd.DataFrame.from_dict(rows, orient="index", columns=["value", "low", "high"]).rename_axis(
            "metric"
        )

    def per_prompt(self) -> pd.DataFrame:
        """The scores of the evaluation, one row a held-out prompt in the order of the split and one column a
        score: for paired comparisons with a run that was evaluated on the same prompts. Raises `RecipeError`
        if the run is not evaluated yet.
        """
        import pandas as pd

        return pd.DataFrame(
            {name: pd.Series(values, dtype=float) for name, values in self._evaluation["per_prompt"].items()}
        ).rename_axis("prompt")

    @property
    def _evaluation(self) -> dict[str, dict[str, float]]:
        return json.loads((self.stage("evaluate") / "results.json").read_text())

    # --- products ---

    def stage(self, name: str) -> Path:
        """The directory of a stage's product in the store. Raises `RecipeError` for a stage that the run does
        not have, or has not made.
        """
        planned = [one["name"] for one in outcome(self.path)["stages"]]
        if name not in planned:
            raise RecipeError(f"run {self.name} has no stage {name!r}{nearest(name, planned)}")
        if read_manifest(self.path / "stages" / name) is None:
            raise RecipeError(
                f"run {self.name} has not finished stage {name!r} yet; run the recipe again to resume"
            )
        return (self.path / "stages" / name).resolve()

    def groups(self, stage: str, file: str | None = None) -> pd.DataFrame:
        """The prompts and answers that a stage wrote, one row an answer. `file` chooses among several
        (`run.groups("curated", "sft")`).

        Columns: `group` and `index` (int: the number of the prompt, and of the answer to it), `prompt_id`,
        `prompt` (text of the last message of the prompt), `messages` (list of {role, content}: prompt and
        answer), `text` (of the answer), `stop` (end, length, environment or error), `reference` (the prompt's
        own answer, NaN if it has none), `tokens` and `mask` (list (T) or None; True where the policy chose),
        `logprobs` (list (T), the sampler's, or None), and one column for each that pieces wrote
        (`reward.reward_model`, `advantages`).

        Raises `RecipeError` for a stage or file that is not there.
        """
        import pandas as pd

        from ratchet.components.data.groups import read_groups

        rows = [
            {
                "group": group_index,
                "index": index,
                "prompt_id": group.prompt.id,
                "prompt": group.prompt.messages[-1]["content"],
                "messages": [*group.prompt.messages, *trajectory.messages],
                "text": trajectory.text,
                "stop": trajectory.stop,
                "reference": group.prompt.answer,
                "tokens": trajectory.inputs.get("tokens"),
                "mask": trajectory.mask or None,
                "logprobs": trajectory.logprobs,
                **{name: values[index] for name, values in group.columns.items()},
            }
            for group_index, group in enumerate(read_groups(self._groups_file(stage, file)))
            for index, trajectory in enumerate(group.trajectories)
        ]
        return pd.DataFrame(rows)

    def _groups_file(self, stage: str, file: str | None) -> Path:
        import pyarrow.parquet as pq

        folder = self.stage(stage)
        names = sorted(
            path.stem
            for path in folder.glob("*.parquet")
            if (pq.read_schema(path).metadata or {}).get(b"layout") == b"groups"
        )
        if not names:
            raise RecipeError(
                f"stage {stage!r} of run {self.name} wrote no prompts and answers (Parquet with layout "
                "`groups`)"
            )
        if file not in names and (file or len(names) > 1):
            chosen = f"wrote no {file!r}" if file else "wrote several"
            raise RecipeError(
                f"stage {stage!r} of run {self.name} {chosen}; expected one of {', '.join(names)} as `file`"
            )
        return folder / f"{file or names[0]}.parquet"

    # --- models ---

    def model(self, name: str = "final") -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
        """A language model of the run and its tokenizer, in float32 on the host: "base", "SFT", "final", or
        the name of a stage ("optimise_2").

        Raises `RecipeError` for a name that is none of these, a stage that made no model, or a reward model.
        """
        from ratchet.components.models.load import load_policy, load_tokenizer

        place = self._model(name)
        return (
            cast("PreTrainedModel", load_policy(place, attention="sdpa")),
            cast("PreTrainedTokenizerBase", load_tokenizer(place)),
        )

    def reward_model(self, name: str = "reward") -> RewardModel:
        """The reward model that the stage `name` trained. Raises `RecipeError` for a stage that made none."""
        return RewardModel(self.stage(name))

    def _model(self, name: str) -> Path:
        from ratchet.tasks.registry.weights import weights_of

        planned = [one["name"] for one in outcome(self.path)["stages"]]
        if name in planned:
            return next(iter(weights_of(str(self.stage(name)), self.home).values()))
        titles = {title.lower(): path for title, path in weights_of(str(self.path), self.home).items()}
        if name.lower() not in titles:
            raise RecipeError(f"run {self.name} has no model {name!r}{nearest(name, [*titles, *planned])}")
        return titles[name.lower()]
