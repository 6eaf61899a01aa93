"""Cross-validation of settings on training files alone, by which defaults and recipes are chosen.

    STABLERNN_DATA=... python benchmarks/cross_validation.py convolutions --jobs 2

trains the settings of one comparison on four of five stratified folds of each data set, for each seed, and scores them
on the fifth; series end earlier and earlier instead. It prints the table of that comparison and keeps all scores in
``benchmarks/results/cross_validation.json``, from which ``--table`` prints it again. Test splits are not read. Scores
that the file has are not measured again, so that an interrupted comparison goes on.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import harness
import numpy as np
import numpy.typing as npt
from accuracy import problem_file
from certified import FORECASTS, PROBLEMS
from harness import Row, data_folder, read_results, stored, write_results
from scipy.special import log_softmax, logsumexp

from stablernn.data.load import read_sequences
from stablernn.data.types import ClassificationData
from stablernn.errors import StableRNNError
from stablernn.nn.models import Classifier
from stablernn.training.build import create_model, create_trainer, with_engine
from stablernn.training.calibration import best_temperature, uncalibrated_logits
from stablernn.training.loop.base_trainer import NoRecorder
from stablernn.training.loop.device import code_commit, pick_device, torch_settings
from stablernn.training.resolve import resolve
from stablernn.training.search.candidates import SMALL
from stablernn.training.search.trial import Trial, load_all, resample, run_trial
from stablernn.training.settings.config import Config
from stablernn.training.settings.load import validate
from stablernn.training.tasks import task_for

Float64Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class HeldOut:
    """A network's answers for the fold that it was not trained on.

    Attributes:
        logits: ``(sequences, classes)``, before calibration.
        truth: Class numbers, ``(sequences,)``.
        cpu_seconds: Processor time of training and answers.
    """

    logits: Float64Array
    truth: npt.NDArray[np.int64]
    cpu_seconds: float


def held_out(config: Config, weights_seed: int, part: int, parts: int, *, times: int = 1) -> HeldOut:
    """Train on all folds but one, without a validation split, and return the answers for that one.

    Args:
        config: Settings, whose seed draws the folds.
        weights_seed: Seed of the initial weights and of the training.
        part: Number of the fold.
        parts: Number of folds.
        times: Multiple of the recommended epochs.
    """
    fold = resample(load_all(config), parts, seed=config.training.seed, refit=True)[part].without_validation()
    if not isinstance(fold, ClassificationData) or fold.test is None:
        raise TypeError(f"Probabilities of classes need labeled sequences, and '{fold.name}' has none.")
    task, began = task_for(fold), time.process_time()
    seeded = config.training.model_copy(update={"seed": weights_seed})
    settings = resolve(config.model_copy(update={"training": seeded}), task)
    if times > 1:
        assert settings.training.epochs is not None
        longer = seeded.model_copy(update={"epochs": times * settings.training.epochs})
        settings = resolve(config.model_copy(update={"training": longer}), task)
    device = pick_device("cpu")
    with torch_settings(device, seed=weights_seed, threads=1):
        model = create_model(settings, fold)
        settings = with_engine(settings, model, device)
        trainer = create_trainer(NoRecorder(), settings, task, model, certify_epochs=False)
        if not trainer.fit():
            raise KeyboardInterrupt
        trainer.load_best()
        # A training ends in training mode, in which dropout would change the answers.
        model.eval()
        assert isinstance(model, Classifier)
        logits, truth = uncalibrated_logits(model, fold.test)
    return HeldOut(logits, truth, time.process_time() - began)


def average_scores(networks: Sequence[Sequence[HeldOut]]) -> list[tuple[float, float]]:
    """Return accuracy and log loss of the networks' mean probabilities on each fold.

    The temperature of a fold is fitted to the other folds: a mean of more networks is less certain, and differences
    would be those of the certainty otherwise.

    Args:
        networks: Answers of each network, fold after fold.
    """
    means = []
    for fold in zip(*networks, strict=True):
        log_probabilities = [log_softmax(network.logits, axis=1) for network in fold]
        means.append((logsumexp(log_probabilities, axis=0) - np.log(len(fold)), fold[0].truth))
    scores = []
    for number, (logits, truth) in enumerate(means):
        others = [mean for other, mean in enumerate(means) if other != number]
        temperature, _ = best_temperature(*(np.concatenate(arrays) for arrays in zip(*others, strict=True)))
        losses = -log_softmax(logits / temperature, axis=1)[np.arange(len(truth)), truth]
        scores.append((float((logits.argmax(axis=1) == truth).mean()), float(losses.mean())))
    return scores


FOLDS = 5
SMALL_SETS = ("ECG200", "ItalyPowerDemand", "GunPoint", "Coffee")
SOLVED = {"training.method": "closed-form"}
UNCHANGED = {"training.time_warp": 0.0, "training.jitter": 0.0, "training.rescale": 0.0}
Settings = dict[str, Any]
FOUR_LRU = tuple(("lru", seed) for seed in range(4))
THREE_LRU = FOUR_LRU[:3]


@dataclass(frozen=True)
class Comparison:
    """Settings to compare.

    Attributes:
        data: Names of data sets.
        common: Settings of all, by their key.
        variants: Further settings of each, by name; the first is what the others are compared with. Three keys are no
            settings: ``channels`` is one of ``CHANNELS`` of ``cross_validation.py``; ``share`` is the share of the
            optimizer steps, of variants that are compared by themselves; ``times`` is a multiple of the recommended
            epochs, of networks in ensembles.
        seeds: Seeds, which draw the folds and the initial weights.
        parts: Folds, or ends of series; of short series there are fewer.
        refits_small: Whether nothing is held out of small training sets to choose an epoch by, as in a search.
        ensembles: Networks whose probabilities are averaged, each a variant and the seed of its weights, by the name of
            the ensemble. These are compared then, instead of the variants alone, on the folds of the first seed.

    """

    data: tuple[str, ...]
    common: Settings
    variants: dict[str, Settings]
    seeds: tuple[int, ...] = (0, 1)
    parts: int = FOLDS
    refits_small: bool = False
    ensembles: dict[str, tuple[tuple[str, int], ...]] = field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """What is compared, the reference first."""
        return tuple(self.ensembles or self.variants)


LRU, LIPSCHITZ = {"model.cell": "lru"}, {"model.cell": "lipschitz"}
REFITTED = {**LRU, "training.refit": True}
WIDE = {**LIPSCHITZ, "model.hidden_size": 128, "training.lr": 0.01}
FOUR_SETS = ("ECG200", "ItalyPowerDemand", "GunPoint", "ArrowHead")
SIX_SETS = (*FOUR_SETS, "JapaneseVowels", "ECG5000")
COMPARISONS = {
    "label-smoothing": Comparison(
        SMALL_SETS, LRU, {"without": {"training.label_smoothing": 0.0}, "0.1": {"training.label_smoothing": 0.1}}
    ),
    "convolutions": Comparison(FOUR_SETS, REFITTED, {"without": {}, "three": {"model.conv_layers": 3}}),
    "augmentation": Comparison(
        FOUR_SETS,
        REFITTED,
        {
            "default": {},
            "mixup 0.2": {"training.mixup": 0.2},
            "crop 0.9": {"training.crop": 0.9},
            "magnitude_warp 0.2": {"training.magnitude_warp": 0.2},
        },
    ),
    "channel-dropout": Comparison(
        ("JapaneseVowels", "BasicMotions"), REFITTED, {"default": {}, "0.1": {"training.channel_dropout": 0.1}}
    ),
    "many-classes": Comparison(
        ("Adiac",),
        REFITTED,
        {
            "500 steps": {"training.max_steps": 500},
            "50 steps a class": {},
            "unchanged, 500 steps": {**UNCHANGED, "training.max_steps": 500},
            "unchanged, 50 a class": UNCHANGED,
        },
        seeds=(0,),
    ),
    "unchanged": Comparison(
        (*SMALL_SETS, "ArrowHead", "JapaneseVowels", "Adiac", "Crop"),
        LRU,
        {"default": {}, "unchanged": UNCHANGED},
        seeds=(0,),
        refits_small=True,
    ),
    "channels": Comparison(
        (*FOUR_SETS, "JapaneseVowels"),
        REFITTED,
        {"samples": {}, **{name: {"channels": name} for name in ("both directions", "differences", "spectrum")}},
    ),
    "mixed-members": Comparison(
        SIX_SETS,
        {"training.refit": True},
        {
            "lru": LRU,
            "gru": {"model.cell": "gru"},
            "convolutions": {**LRU, "model.conv_layers": 3},
            "differences": {**LRU, "channels": "differences"},
            "closed form": {**SOLVED, **LRU, "model.hidden_size": 256},
        },
        seeds=(0,),
        ensembles={
            "four lru": FOUR_LRU,
            "three lru, one gru": (*THREE_LRU, ("gru", 0)),
            "three lru, one with convolutions": (*THREE_LRU, ("convolutions", 0)),
            "three lru, one with differences": (*THREE_LRU, ("differences", 0)),
            "four kinds": (("lru", 0), ("gru", 0), ("convolutions", 0), ("differences", 0)),
            "four lru, two closed forms": (*FOUR_LRU, ("closed form", 0), ("closed form", 1)),
        },
    ),
    "longer-members": Comparison(
        SIX_SETS,
        REFITTED,
        {"lru": {}, "twice": {"times": 2}, "four times": {"times": 4}},
        seeds=(0,),
        ensembles={
            "eight": tuple(("lru", seed) for seed in range(8)),
            "four": FOUR_LRU,
            "four, twice the epochs": tuple(("twice", seed) for seed in range(4)),
            "two, twice the epochs": tuple(("twice", seed) for seed in range(2)),
            "two, four times the epochs": tuple(("four times", seed) for seed in range(2)),
            "one, four times the epochs": (("four times", 0),),
            "the same, another seed": (("four times", 1),),
        },
    ),
    "longer-unchanged": Comparison(
        ("Adiac",),
        {**REFITTED, **UNCHANGED},
        {"recommended": {}, "twice": {"times": 2}},
        seeds=(0,),
        parts=3,
        ensembles={"recommended epochs": (("recommended", 0),), "twice the epochs": (("twice", 0),)},
    ),
    "closed-form": Comparison(
        ("ItalyPowerDemand", "GunPoint", "ArrowHead", "JapaneseVowels", "digits"),
        {},
        {
            "lru": LRU,
            "half of its steps": {**LRU, "share": 0.5},
            "a fifth": {**LRU, "share": 0.2},
            "closed form, lru, 256 units": {**SOLVED, **LRU, "model.hidden_size": 256},
            "rocket": SOLVED | {"model.cell": "rocket"},
            "64 units": {**SOLVED, **LRU},
            "lipschitz, 256 units": {**SOLVED, **LIPSCHITZ, "model.hidden_size": 256},
            "gru, 256 units": {**SOLVED, "model.cell": "gru", "model.hidden_size": 256},
        },
        seeds=(0,),
        refits_small=True,
    ),
    "closed-form-forecast": Comparison(
        ("daily-min-temperatures", "ETTh1"),
        {},
        {
            "lipschitz": LIPSCHITZ,
            "a fifth of its steps": {**LIPSCHITZ, "share": 0.2},
            "closed form, linear skip": {**SOLVED, **LRU},
            "layers of lru alone": {**SOLVED, **LRU, "model.skip": "none"},
        },
        seeds=(0,),
    ),
    "longer-forecasts": Comparison(
        ("m4-hourly", "ETTh1"),
        LIPSCHITZ,
        {
            "default": {},
            "four members": {"model.members": 4},
            "128 units": {"model.hidden_size": 128},
            "128 units, twice the rate": WIDE,
            "20 epochs": {"training.epochs": 20},
            "20 epochs, 128 units": {"training.epochs": 20, "model.hidden_size": 128},
        },
        seeds=(0,),
        parts=2,
    ),
    "many-windows": Comparison(
        ("m4-hourly",),
        WIDE,
        {
            "7 epochs": {"training.epochs": 7},
            "7 epochs, twice the rate": {"training.epochs": 7, "training.lr": 0.02},
            "9 epochs": {"training.epochs": 9},
            "4 epochs, two members": {"training.epochs": 4, "model.members": 2},
        },
        parts=2,
    ),
    "refitted-forecasts": Comparison(
        ("m4-hourly", "ETTm1"),
        {**WIDE, "training.max_steps": 2000},
        {"validation steps held out": {}, "trained on": {"training.refit": True}},
        seeds=(0,),
        parts=2,
    ),
    "certified": Comparison(
        (*PROBLEMS, *FORECASTS),
        LIPSCHITZ,
        {"free": {"training.certified": False}, "certified": {"training.certified": True}},
        seeds=(0,),
    ),
}


RESULTS = stored("cross_validation")
SERIES: dict[str, tuple[str, dict[str, Any]]] = {
    "daily-min-temperatures": ("univariate/daily-min-temperatures.csv", {"data.target": ["Temp"], "task.horizon": 7}),
    "ETTh1": ("ETT-small/ETTh1.csv", {"data.target": ["OT"], "task.horizon": 24}),
    "ETTm1": ("ETT-small/ETTm1.csv.gz", {"data.channels_as_series": True, "task.horizon": 24}),
}
"""Files in the folder ``forecasting`` of the data, and what they are read with."""
Array = npt.NDArray[Any]


def _differences(x: Array) -> Array:
    return np.diff(x, axis=0, prepend=x[:1])


def _spectrum(x: Array) -> Array:
    """Return the logarithm of the power in five bands of the last 16 samples, ``(time, 5 * features)``."""
    padded = np.concatenate([np.repeat(x[:1], SPECTRUM_SAMPLES - 1, axis=0), x])
    windows = np.lib.stride_tricks.sliding_window_view(padded, SPECTRUM_SAMPLES, axis=0)
    power = np.abs(np.fft.rfft(windows * np.hanning(SPECTRUM_SAMPLES), axis=-1)[..., 1:6]) ** 2
    return np.log(power + 1e-3).reshape(len(x), -1)


SPECTRUM_SAMPLES = 16
CHANNELS: dict[str, Callable[[Array], Array]] = {
    "both directions": lambda x: x[::-1],
    "differences": _differences,
    "spectrum": _spectrum,
}
"""What is appended to the samples of a sequence, ``(time, features)``. Both directions need complete sequences."""


def append_channels(path: str, name: str, folder: str) -> str:
    """Write the training file with channels appended to its samples, and return the path of the copy."""
    sequences = read_sequences(Path(path))
    values = [np.concatenate([x, CHANNELS[name](x)], axis=1, dtype=np.float32) for x in sequences.values]
    lengths = np.array([len(x) for x in values])
    padded = np.zeros((len(values), lengths.max(), values[0].shape[1]), dtype=np.float32)
    for row, x in zip(padded, values, strict=True):
        row[: len(x)] = x
    copy = Path(folder) / "channels.npz"
    np.savez(copy, x=padded, y=np.array(sequences.labels), lengths=lengths)
    return str(copy)


def source(name: str) -> Settings:
    """Return the settings of a data set."""
    if name in PROBLEMS:
        return {"data.source": problem_file(name)}
    if name in SERIES:
        file, settings = SERIES[name]
        return {"data.source": str(data_folder() / "forecasting" / file), **settings}
    if name not in FORECASTS:
        (path,) = (data_folder() / "ucr-uea" / name).glob(f"{name}_TRAIN.*")
        return {"data.source": str(path)}
    words = FORECASTS[name]
    settings = dict(word.split("=", 1) for word in words if "=" in word)
    return {"data.source": words[1], **{key: value.split(",") for key, value in settings.items()}}


def settings_of(comparison: str, data: str, variant: str, seed: int, folder: str) -> Config:
    """Return the settings of a training; a copy of the data with channels appended is written to the folder."""
    chosen = COMPARISONS[comparison]
    settings = {**source(data), **chosen.common, **chosen.variants[variant], "training.seed": seed}
    channels = settings.pop("channels", None)
    for key in ("share", "times"):
        settings.pop(key, None)
    if channels is not None:
        settings["data.source"] = append_channels(settings["data.source"], channels, folder)
    tree: dict[str, dict[str, Any]] = {}
    for key, value in settings.items():
        section, name = key.split(".", 1)
        tree.setdefault(section, {})[name] = value
    config = validate(tree)
    if chosen.refits_small:
        loaded = load_all(config)
        if len(loaded.train) + len(loaded.validation) < SMALL:
            config = config.model_copy(update={"training": config.training.model_copy(update={"refit": True})})
    return config


def count_parts(comparison: str, data: str) -> int:
    """Return how many parts there are: short series end earlier less often."""
    config = settings_of(comparison, data, next(iter(COMPARISONS[comparison].variants)), 0, "")
    return len(resample(load_all(config), COMPARISONS[comparison].parts, seed=0, refit=config.training.refit))


def score(comparison: str, data: str, variant: str, seed: int, part: int) -> list[Row]:
    """Train on all folds but one, and return the row of the score on that one."""
    chosen = COMPARISONS[comparison]
    with tempfile.TemporaryDirectory() as folder:
        config, began = settings_of(comparison, data, variant, seed, folder), time.process_time()
        result = run_trial(Trial(0, config, part, chosen.variants[variant].get("share", 1.0)))
    row = {"comparison": comparison, "data": data, "variant": variant, "seed": seed, "part": part}
    row |= {"metric": result.metric, "score": result.score, "log_loss": result.tie, "seconds": round(result.seconds, 1)}
    row["cpu_seconds"] = round(time.process_time() - began, 2)
    return [row | {"reason": result.reason, "commit": code_commit()}]


def score_ensembles(comparison: str, data: str) -> list[Row]:
    """Train each network of a comparison once on all folds but one, and return a row for each ensemble and fold."""
    chosen, commit = COMPARISONS[comparison], code_commit()
    folds, seed = range(count_parts(comparison, data)), chosen.seeds[0]
    networks: dict[tuple[str, int], list[HeldOut]] = {}
    for variant, weights_seed in sorted({network for ensemble in chosen.ensembles.values() for network in ensemble}):
        with tempfile.TemporaryDirectory() as folder:
            config = settings_of(comparison, data, variant, seed, folder)
            times = chosen.variants[variant].get("times", 1)
            answers = [held_out(config, weights_seed, part, len(folds), times=times) for part in folds]
        networks[variant, weights_seed] = answers
    rows: list[Row] = []
    for name, members in chosen.ensembles.items():
        answers_of = [networks[member] for member in members]
        for part, (accuracy, log_loss) in enumerate(average_scores(answers_of)):
            row = {"comparison": comparison, "data": data, "variant": name, "seed": seed, "part": part}
            cpu_seconds = round(sum(member[part].cpu_seconds for member in answers_of), 2)
            row |= {"metric": "accuracy", "score": accuracy, "log_loss": log_loss, "cpu_seconds": cpu_seconds}
            rows.append({**row, "commit": commit})
    return rows


def table(comparison: str, rows: list[Row]) -> str:
    """Return a Markdown table: the mean score of the first variant, and the mean differences of the others from it.

    Differences are of the same folds, which their standard error is of; those of errors are relative, in percent.
    Seconds are processor time of a training with its scoring, a mean for each variant. Ensembles have the means over
    the data sets as well, with the standard error over these.
    """
    chosen = COMPARISONS[comparison]
    first, *others = chosen.names
    lines: list[list[str]] = []
    means: dict[tuple[str, str], list[float]] = {}
    for data in chosen.data:
        runs = {name: [row for row in rows if (row["data"], row["variant"]) == (data, name)] for name in chosen.names}
        metric = next((row["metric"] for part in runs.values() for row in part if row["metric"]), "")
        for figure, label in (("score", metric), ("log_loss", "log loss")):
            scores = {
                name: {(row["seed"], row["part"]): row[figure] for row in part if row[figure] is not None}
                for name, part in runs.items()
            }
            if scores[first]:
                is_relative = figure == "score" and metric != "accuracy"
                cells = [_difference(scores[name], scores[first], is_relative=is_relative) for name in others]
                lines.append([data, label, f"{np.mean([*scores[first].values()]):.3f}", *cells])
                for name in chosen.names:
                    means.setdefault((label, name), []).append(float(np.mean([*scores[name].values()])))
        seconds = [[row.get("cpu_seconds") for row in part] for part in runs.values()]
        if all(values and None not in values for values in seconds):
            lines.append([data, "CPU s", *(f"{np.mean(values):.1f}" for values in seconds)])
    for label in ("accuracy", "log loss") if chosen.ensembles else ():
        columns = {name: dict(enumerate(means[label, name])) for name in chosen.names}
        cells = [_difference(columns[name], columns[first], is_relative=False) for name in others]
        lines.append(["mean", label, f"{np.mean([*columns[first].values()]):.3f}", *cells])
    return harness.table(("data", "metric", first, *(f"{name}, difference" for name in others)), lines)


def _difference(scores: Mapping[Any, float], references: Mapping[Any, float], *, is_relative: bool) -> str:
    keys = sorted(scores.keys() & references.keys())
    if len(keys) < 2:
        return "-"
    reference = np.array([references[key] for key in keys])
    differences, form = np.array([scores[key] for key in keys]) - reference, ".3f"
    if is_relative:
        differences, form = 100 * differences / reference, ".1f"
    error = differences.std(ddof=1) / len(differences) ** 0.5
    return f"{differences.mean():+{form}} ± {error:{form}}{' %' if is_relative else ''}"


def jobs(comparison: str) -> Iterator[tuple[str, str, str, int, int]]:
    """Yield the trainings of a comparison: whole seeds and parts first, so that a stopped one compares all variants."""
    chosen = COMPARISONS[comparison]
    for seed, data in product(chosen.seeds, chosen.data):
        for part, variant in product(range(count_parts(comparison, data)), chosen.variants):
            yield comparison, data, variant, seed, part


def pending(comparison: str, rows: list[Row]) -> list[tuple[Callable[..., list[Row]], tuple[Any, ...]]]:
    """Return the calls whose rows are missing: one for each training, or for each data set of ensembles."""
    chosen, known = COMPARISONS[comparison], {_key(row) for row in rows}
    if not chosen.ensembles:
        return [(score, job) for job in jobs(comparison) if job not in known]
    names = {data: {key[2] for key in known if key[:2] == (comparison, data)} for data in chosen.data}
    return [(score_ensembles, (comparison, data)) for data in chosen.data if not names[data].issuperset(chosen.names)]


def main() -> None:
    parser = harness.arguments_parser(__doc__)
    parser.add_argument("comparison", choices=list(COMPARISONS))
    parser.add_argument("--jobs", type=int, default=1, help="trainings at a time, one thread each")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the file of all scores")
    parser.add_argument("--table", action="store_true", help="only print the table of the results")
    arguments = parser.parse_args()
    rows: list[Row] = read_results(arguments.results, [])
    if not arguments.table:
        calls = pending(arguments.comparison, rows)
        # Not a fork, in which the threads of polars that read the data before would be missing.
        with ProcessPoolExecutor(arguments.jobs, get_context("spawn")) as pool:
            try:
                for future in as_completed([pool.submit(function, *words) for function, words in calls]):
                    rows = [*{_key(row): row for row in [*rows, *future.result()]}.values()]
                    print(*future.result(), sep="\n", flush=True)
                    write_results(arguments.results, sorted(rows, key=_key))
            except StableRNNError as error:
                raise SystemExit(str(error)) from None
    print(table(arguments.comparison, [row for row in rows if row["comparison"] == arguments.comparison]))


def _key(row: Row) -> tuple[str, str, str, int, int]:
    return row["comparison"], row["data"], row["variant"], row["seed"], row["part"]


if __name__ == "__main__":
    main()
