"""A comparison: contenders, each a cell with a recipe of settings, on problems, each a data set.

Its plan gives runs equal processor time, its runs are trained in parallel, each in a run directory, and its results
have the time of a step as a server or a device runs it.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from stablernn.atomic_files import read_json, to_json_types, write_bytes, write_json
from stablernn.catalog import get_cell_facts
from stablernn.compare.baselines import Baseline, check_baseline, score_baseline
from stablernn.compare.results import aggregate, latex, markdown, run_rows
from stablernn.errors import ConfigError, TrainingError
from stablernn.export.parity import open_session
from stablernn.export.scan import step_graph
from stablernn.export.step import export_parts, state_names
from stablernn.nn.models import SequenceModel
from stablernn.training import load_run, train
from stablernn.training.build import measure_speed
from stablernn.training.callbacks import open_trackers
from stablernn.training.evaluation.scorers import write_tables
from stablernn.training.jobs import Job, JobLocks, run_jobs, unique_readings
from stablernn.training.loop.device import environment
from stablernn.training.resolve import resolve
from stablernn.training.run_data import load_run_data
from stablernn.training.run_directory import RunDirectory
from stablernn.training.settings.config import AUTO, Config
from stablernn.training.settings.load import load_config
from stablernn.training.tasks import task_for

_PROGRESS = logging.getLogger("stablernn.progress")

_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]+")


@dataclass(frozen=True)
class Recipe:
    """Settings that each cell is trained with.

    Attributes:
        name: Name in tables; empty for the settings that are recommended for a cell.
        settings: The settings, as ``KEY=VALUE``.
    """

    name: str
    settings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Contender:
    """A cell with a recipe.

    Attributes:
        cell: Key of the cell.
        recipe: The recipe.
    """

    cell: str
    recipe: Recipe

    @property
    def name(self) -> str:
        return f"{self.cell}, {self.recipe.name}" if self.recipe.name else self.cell


@dataclass(frozen=True)
class Problem:
    """A data set.

    Attributes:
        name: Name in tables.
        source: Name of the data set, or path of its file.
    """

    name: str
    source: str


def make_problems(sources: Sequence[str]) -> list[Problem]:
    """Return the problems of data sets, each with a name of its own.

    Raises:
        ConfigError: If there is none, or one twice.
    """
    if not sources:
        raise ConfigError("A comparison needs data. Give one data set or more with --data.")
    repeated = [source for source in sources if sources.count(source) > 1]
    if repeated:
        raise ConfigError(f"The data set '{repeated[0]}' is given twice. Give it once.")
    stems = [Path(source).name.removesuffix(".gz").rsplit(".", 1)[0].removesuffix("_TRAIN") for source in sources]
    # Two files of the same name in different folders keep their folders.
    names = [stem if stems.count(stem) == 1 else source for stem, source in zip(stems, sources, strict=True)]
    return [Problem(name, source) for name, source in zip(names, sources, strict=True)]


def make_contenders(cells: Sequence[str], recipes: Sequence[Recipe]) -> list[Contender]:
    """Return each cell with each recipe, the cells in the outer loop.

    Raises:
        ConfigError: If there is no cell, one twice, or ``auto``, which is a search.
        UnknownNameError: If a cell does not exist.
    """
    if not cells:
        raise ConfigError("A comparison needs cells. Give their keys with --cells, such as --cells lru,lipschitz.")
    repeated = [cell for cell in cells if cells.count(cell) > 1]
    if repeated:
        raise ConfigError(f"The cell '{repeated[0]}' is given twice. Give it once.")
    if AUTO in cells:
        raise ConfigError(
            "'auto' is a search for settings, not a cell. Run `stablernn train --data ...` without a cell, and compare "
            "the cell and the settings that it prints."
        )
    names = [recipe.name for recipe in recipes]
    if len(set(names)) < len(names):
        raise ConfigError(f"Two recipes have one name. Got {', '.join(names)}.")
    for cell in cells:
        get_cell_facts(cell)
    return [Contender(cell, recipe) for cell in cells for recipe in (recipes or [Recipe("")])]


def parse_recipe(text: str) -> Recipe:
    """Return the recipe in a text such as ``"short: model.patch_size=4 model.patch_stride=2"``.

    Raises:
        ConfigError: If the text has another form, or has the cell, the data or the seed.
    """
    name, colon, settings = text.partition(":")
    words = settings.split()
    if not (name.strip() and colon and words):
        raise ConfigError(
            "A recipe is a name, a colon and settings, such as 'short: model.patch_size=4 model.patch_stride=2', got "
            f"'{text}'."
        )
    check_overrides(words)
    return Recipe(name.strip(), tuple(words))


def check_overrides(overrides: Sequence[str]) -> None:
    """Refuse settings in which the runs of a comparison differ.

    Raises:
        ConfigError: If there is one.
    """
    for key, option in (("model.cell", "--cells"), ("training.seed", "--seeds"), ("data.source", "--data")):
        if any(text.partition("=")[0].strip() == key for text in overrides):
            raise ConfigError(f"{key} is not a setting of all runs of a comparison. Give {option} instead.")


def folder_name(problem: Problem, contender: Contender, seed: int) -> str:
    """Return the name of a run's folder."""
    return "-".join(_UNSAFE.sub("_", part).strip("_") for part in (problem.name, contender.name, str(seed)))


RESULTS, TABLE, LATEX, FIGURE = "results.json", "table.md", "table.tex", "critical_difference.png"


@dataclass(frozen=True)
class Comparison:
    """The problems and contenders to compare, and for how long.

    Attributes:
        problems: The data sets.
        contenders: Cells with recipes. Without ``seconds`` the first one's own training sets the time of a run.
        seeds: Seeds of the trainings.
        config: YAML file with settings of all runs; None: none.
        overrides: Settings of all runs, as ``KEY=VALUE``.
        seconds: Processor time of each run; None: that of the whole training of the first contender, on each data set.
        epochs: Passes of each run over the training data, instead of a time.
        baselines: Further models to score.
        track: Names of trackers that each run is logged to, as of
            :func:`stablernn.training.callbacks.open_trackers`.
    """

    problems: Sequence[Problem]
    contenders: Sequence[Contender]
    seeds: Sequence[int] = (0,)
    config: Path | None = None
    overrides: Sequence[str] = ()
    seconds: float | None = None
    epochs: int | None = None
    baselines: Sequence[Baseline] = ()
    track: tuple[str, ...] = ()

    def settings(self, problem: Problem, contender: Contender, seed: int) -> Config:
        """Return the settings of a run, before its length is known.

        Raises:
            ConfigError: If a key does not exist or a value is not allowed.
        """
        run_options = {"data.source": problem.source, "model.cell": contender.cell, "training.seed": seed}
        options = {**run_options, "training.epochs": self.epochs}
        overrides = [*self.overrides, *contender.recipe.settings]
        # Plots would take a share of the time that differs between cells.
        return load_config(self.config, overrides, {"training": {"plots": False}}, options=options)


@unique_readings()
def compare(
    comparison: Comparison,
    output: Path,
    *,
    jobs: int = 1,
    progress: Callable[[str, int, int], None] | None = None,
    report: Callable[[str], None] | None = None,
) -> dict[str, Any]:
    """Train the contenders on the problems, and write runs, results and tables into a folder.

    Finished runs of the same comparison are kept, so that an interrupted one goes on, and further seeds, contenders and
    problems join it. Processes, also of several machines, may make the same call for one folder at a time: each takes
    runs that no other one has, and all return the whole results.

    Args:
        comparison: What to compare.
        output: The folder.
        jobs: Runs at a time, one thread each.
        progress: Called with the name of each finished run, the number of those done and of all.
        report: Called with sentences about other processes that work in the folder.

    Returns:
        The content of ``results.json``, see :func:`stablernn.compare.results.aggregate`.

    Raises:
        ConfigError: If settings are wrong, or the folder has another comparison or cannot be written to.
        DataError: If data cannot be used.
        TrainingError: If a process died.
        InterruptedRun: If the user stopped it; the same call goes on.
    """
    if comparison.seconds is not None and comparison.epochs is not None:
        raise ConfigError("Runs are as long by time or by epochs: give seconds or epochs, not both.")
    # A tracker whose library is missing would make every run fail.
    open_trackers(comparison.track)
    check_overrides(comparison.overrides)
    for problem in comparison.problems:
        for contender in comparison.contenders:
            comparison.settings(problem, contender, 0)
    _create(output)
    locks = JobLocks(output / ".locks")

    def make_plan() -> tuple[_Plan, list[ComparedRun]]:
        plan = _Plan(comparison, output)
        return plan, plan.runs()

    plan, runs = locks.exclusively("plan", make_plan, report)
    waiting = [run for run in runs if not run.is_done]
    done = len(runs) - len(waiting)

    def finished(job: Job) -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(job.name, done, len(runs))

    if waiting:
        _PROGRESS.info("Training %d of %d runs ...", len(waiting), len(runs))
    run_jobs([_job(run) for run in waiting], jobs, locks, finished, report)
    run_jobs(plan.baseline_jobs(), 1, locks, lambda _: None, report)
    return locks.exclusively("results", lambda: plan.write_results(runs), report)


def _job(run: ComparedRun) -> Job:
    return Job(
        run.name,
        train_and_measure,
        (run,),
        key=run.path.name,
        is_done=partial(has_metrics, run.figures),
        checkpoint=RunDirectory(run.path).checkpoint("last"),
    )


class _Plan:
    """Lengths of the runs of a comparison, which are measured once and kept in the folder.

    Raises:
        ConfigError: If the folder has a comparison with other settings.
    """

    def __init__(self, comparison: Comparison, output: Path) -> None:
        self._comparison = comparison
        self._output = output
        self._path = output / "comparison.json"
        stored = read_json(self._path) if self._path.is_file() else {}
        requested = to_json_types({"seconds": comparison.seconds, "epochs": comparison.epochs})
        for key, value in requested.items():
            if stored and stored[key] != value:
                raise ConfigError(
                    f"The comparison in '{output}' was begun with {key}={stored[key]}, now it is {value}. Name another "
                    "folder with --output."
                )
        self._document: dict[str, Any] = {"problems": {}, **stored, **requested}

    def runs(self) -> list[ComparedRun]:
        """Return all runs, those of a problem after one another.

        Raises:
            ConfigError: If settings or data differ from those that the comparison was begun with.
        """
        runs = []
        for problem in self._comparison.problems:
            self._check_problem(problem)
            for contender in self._comparison.contenders:
                steps = self._steps(problem, contender)
                for seed in self._comparison.seeds:
                    config = self._comparison.settings(problem, contender, seed)
                    name = folder_name(problem, contender, seed)
                    runs.append(
                        ComparedRun(
                            problem,
                            contender,
                            seed,
                            _with_length(config, steps),
                            self._output / "runs" / name,
                            self._output / "figures" / f"{name}.json",
                            self._comparison.track,
                        )
                    )
        return runs

    def _check_problem(self, problem: Problem) -> None:
        first = self._comparison.settings(problem, self._comparison.contenders[0], 0)
        data = load_run_data(first)
        for baseline in self._comparison.baselines:
            check_baseline(baseline, data)
        task = task_for(data)
        resolved = resolve(first, task)
        facts = {
            "source": problem.source,
            "fingerprint": data.fingerprint,
            "task": data.task,
            "metric": task.objective(resolved.training).headline,
            "contenders": {},
        }
        stored = self._document["problems"].setdefault(problem.name, facts)
        if stored["fingerprint"] != facts["fingerprint"]:
            raise ConfigError(
                f"The data '{problem.name}' has changed since the comparison in '{self._output}' began. Give the old "
                "data, or name another folder with --output."
            )

    def _steps(self, problem: Problem, contender: Contender) -> int | None:
        """Return the optimizer steps of a contender's runs; None for those that its settings give."""
        config = self._comparison.settings(problem, contender, 0)
        settings = config.model_dump(mode="json", exclude_unset=True)
        facts = self._document["problems"][problem.name]
        stored = facts["contenders"].get(contender.name)
        if stored is None:
            steps = None
            if self._comparison.epochs is None:
                speed = measure_speed(config)
                # Without a time for all problems, the first contender's own training sets that of the problem.
                seconds = facts.setdefault("cpu_seconds", self._comparison.seconds or speed.seconds)
                steps = max(1, round(seconds / speed.step_seconds))
            stored = facts["contenders"][contender.name] = {"settings": settings, "steps": steps}
            write_json(self._path, self._document)
        elif stored["settings"] != settings:
            raise ConfigError(
                f"The comparison in '{self._output}' has '{contender.name}' on '{problem.name}' with other settings. "
                "Give the settings it was begun with, another name to the recipe, or another folder with --output."
            )
        return stored["steps"] if stored["steps"] is None else int(stored["steps"])

    def baseline_jobs(self) -> list[Job]:
        """Return a job for each baseline on each problem, to fit and to score it."""
        jobs = []
        for problem in self._comparison.problems:
            config = self._comparison.settings(problem, self._comparison.contenders[0], 0)
            for baseline in self._comparison.baselines:
                path = self._baseline_figures(problem, baseline)
                arguments = (baseline, config, self._comparison.seeds, path)
                name = f"{baseline} on {problem.name}"
                jobs.append(Job(name, write_baseline_scores, arguments, key=path.stem, is_done=path.is_file))
        return jobs

    def _baseline_figures(self, problem: Problem, baseline: Baseline) -> Path:
        return self._output / "figures" / f"{problem.name}-{baseline}.json"

    def write_results(self, runs: Sequence[ComparedRun]) -> dict[str, Any]:
        """Write results, table and figure, and return the results."""
        import torch

        problems = {}
        for problem in self._comparison.problems:
            facts = problems[problem.name] = self._document["problems"][problem.name]
            for baseline in self._comparison.baselines:
                facts.setdefault("baselines", {})[baseline] = read_json(self._baseline_figures(problem, baseline))
        rows = [
            {
                "problem": run.problem.name,
                "contender": run.contender.name,
                "cell": run.contender.cell,
                "recipe": list(run.contender.recipe.settings),
                "seed": run.seed,
                "run": str(run.path),
                **read_json(run.figures),
            }
            for run in runs
        ]
        results = {
            **aggregate(rows, problems),
            "seconds": self._comparison.seconds,
            "epochs": self._comparison.epochs,
            "environment": environment(torch.device("cpu")),
        }
        write_json(self._output / RESULTS, results)
        write_bytes(self._output / TABLE, markdown(results).encode())
        write_bytes(self._output / LATEX, latex(results).encode())
        write_tables(self._output, {"results": run_rows(results)})
        if results["ranks"]["wilcoxon"]:
            from stablernn.compare.results import plot_critical_difference

            plot_critical_difference(self._output / FIGURE, results["ranks"])
        return results


def _with_length(config: Config, steps: int | None) -> Config:
    return config if steps is None else config.updated("training", epochs=None, max_steps=steps)


def write_baseline_scores(baseline: Baseline, config: Config, seeds: Sequence[int], path: Path) -> None:
    """Fit and score a baseline, and write its figures."""
    write_json(path, score_baseline(baseline, config, seeds))


def _create(output: Path) -> None:
    """Create the folder.

    Raises:
        ConfigError: If it cannot be created.
    """
    try:
        for name in ("runs", "figures"):
            (output / name).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"Cannot create the folder '{error.filename}': {error.strerror}.") from error


@dataclass(frozen=True)
class ComparedRun:
    """A run of a comparison.

    Attributes:
        problem: The problem.
        contender: The contender.
        seed: Seed of the training.
        config: Its settings, not resolved.
        path: The run directory.
        figures: File with the figures of the run.
        track: Names of trackers that the run is logged to.
    """

    problem: Problem
    contender: Contender
    seed: int
    config: Config
    path: Path
    figures: Path
    track: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.contender.name} on {self.problem.name}, seed {self.seed}"

    @property
    def is_done(self) -> bool:
        return has_metrics(self.figures)


def has_metrics(figures: Path) -> bool:
    """Return whether a file has the figures of a run that is done, and not only of an interrupted one."""
    return figures.is_file() and "metrics" in read_json(figures)


def train_and_measure(run: ComparedRun) -> None:
    """Train a run, or resume it, and write its figures.

    A training that fails, since it diverges or leaves less proved than it has to, is a result too.
    """
    # Of a run that was interrupted the time is that of all its parts.
    spent = read_json(run.figures)["cpu_seconds"] if run.figures.is_file() else 0.0
    began = time.process_time()

    def cpu_seconds() -> float:
        return round(spent + time.process_time() - began, 3)

    try:
        is_begun = (run.path / "config.yaml").is_file()
        summary = train(run.config, run.path, resume=is_begun, callbacks=open_trackers(run.track))
    except TrainingError as error:
        write_json(run.figures, {"cpu_seconds": cpu_seconds(), "error": str(error), "metrics": {}})
        return
    except BaseException:
        write_json(run.figures, {"cpu_seconds": cpu_seconds()})
        raise
    figures = {"cpu_seconds": cpu_seconds(), **_figures(summary)}
    model = load_run(run.path).model
    # A model of complete sequences has no step.
    if model.resampling is None:
        figures["step_ms"] = round(step_milliseconds(model), 5)
    write_json(run.figures, figures)


def _figures(summary: Any) -> dict[str, Any]:
    return {
        **{key: summary[key] for key in ("task", "parameters", "engine", "epochs", "steps", "seconds", "diverged")},
        "certificate": summary.get("certificate"),
        "metrics": summary["metrics"],
    }


_STEPS = 200
_REPEATS = 5


def step_milliseconds(model: SequenceModel) -> float:
    """Return the median time of a step of a batch of one, in milliseconds, on one thread of ONNX Runtime.

    A step reads as many samples as a patch of the model has strides.

    Args:
        model: A trained model, in evaluation mode, on the CPU.
    """
    session = open_session(step_graph(export_parts(model)).SerializeToString())
    states = {name: state.numpy() for name, state in zip(state_names(model), model.initial_state(1), strict=True)}
    feeds: dict[str, Any] = {**_zero_inputs(session, states), **states}
    outputs = [output.name for output in session.get_outputs()]
    next_states = [outputs.index(f"{name}_out") for name in states]
    seconds = []
    for _ in range(_REPEATS):
        began = time.perf_counter()
        for _ in range(_STEPS):
            values = session.run(outputs, feeds)
            feeds.update(zip(states, (values[index] for index in next_states), strict=True))
        seconds.append(time.perf_counter() - began)
    return float(np.median(seconds)) / _STEPS * 1e3


def _zero_inputs(session: ort.InferenceSession, states: Mapping[str, Any]) -> dict[str, Any]:
    """Return zeros for the inputs of a graph that are not states; a named size is one sequence."""
    types = {"tensor(float)": np.float32, "tensor(int64)": np.int64}
    return {
        entry.name: np.zeros([size if isinstance(size, int) else 1 for size in entry.shape], types[entry.type])
        for entry in session.get_inputs()
        if entry.name not in states
    }
