"""Settings that ``cross_validation.py`` compares, by the name of the comparison."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from accuracy import PROBLEMS
from certified import FORECASTS

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

    Raises:
        ValueError: If a variant has a ``share`` in an ensemble, or ``times`` without one.
    """

    data: tuple[str, ...]
    common: Settings
    variants: dict[str, Settings]
    seeds: tuple[int, ...] = (0, 1)
    parts: int = FOLDS
    refits_small: bool = False
    ensembles: dict[str, tuple[tuple[str, int], ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        unused = "share" if self.ensembles else "times"
        for name, settings in self.variants.items():
            if unused in settings:
                kind = "networks in ensembles" if self.ensembles else "variants that are compared by themselves"
                raise ValueError(f"'{unused}' has no effect on {kind}, got it in '{name}'; leave it out.")

    @property
    def names(self) -> tuple[str, ...]:
        """What is compared, the reference first."""
        return tuple(self.ensembles or self.variants)


COMPARISONS = {
    "label-smoothing": Comparison(
        SMALL_SETS,
        {"model.cell": "lru"},
        {"without": {"training.label_smoothing": 0.0}, "0.1": {"training.label_smoothing": 0.1}},
    ),
    "convolutions": Comparison(
        ("ECG200", "ItalyPowerDemand", "GunPoint", "ArrowHead"),
        {"model.cell": "lru", "training.refit": True},
        {"without": {}, "three": {"model.conv_layers": 3}},
    ),
    "augmentation": Comparison(
        ("ECG200", "ItalyPowerDemand", "GunPoint", "ArrowHead"),
        {"model.cell": "lru", "training.refit": True},
        {
            "default": {},
            "mixup 0.2": {"training.mixup": 0.2},
            "crop 0.9": {"training.crop": 0.9},
            "magnitude_warp 0.2": {"training.magnitude_warp": 0.2},
        },
    ),
    "channel-dropout": Comparison(
        ("JapaneseVowels", "BasicMotions"),
        {"model.cell": "lru", "training.refit": True},
        {"default": {}, "0.1": {"training.channel_dropout": 0.1}},
    ),
    "many-classes": Comparison(
        ("Adiac",),
        {"model.cell": "lru", "training.refit": True},
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
        {"model.cell": "lru"},
        {"default": {}, "unchanged": UNCHANGED},
        seeds=(0,),
        refits_small=True,
    ),
    "channels": Comparison(
        ("ECG200", "ItalyPowerDemand", "GunPoint", "ArrowHead", "JapaneseVowels"),
        {"model.cell": "lru", "training.refit": True},
        {"samples": {}, **{name: {"channels": name} for name in ("both directions", "differences", "spectrum")}},
    ),
    "mixed-members": Comparison(
        ("ECG200", "ItalyPowerDemand", "GunPoint", "ArrowHead", "JapaneseVowels", "ECG5000"),
        {"training.refit": True},
        {
            "lru": {"model.cell": "lru"},
            "gru": {"model.cell": "gru"},
            "convolutions": {"model.cell": "lru", "model.conv_layers": 3},
            "differences": {"model.cell": "lru", "channels": "differences"},
            "closed form": {**SOLVED, "model.cell": "lru", "model.hidden_size": 256},
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
        ("ECG200", "ItalyPowerDemand", "GunPoint", "ArrowHead", "JapaneseVowels", "ECG5000"),
        {"model.cell": "lru", "training.refit": True},
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
        {"model.cell": "lru", "training.refit": True, **UNCHANGED},
        {"recommended": {}, "twice": {"times": 2}},
        seeds=(0,),
        parts=3,
        ensembles={"recommended epochs": (("recommended", 0),), "twice the epochs": (("twice", 0),)},
    ),
    "closed-form": Comparison(
        ("ItalyPowerDemand", "GunPoint", "ArrowHead", "JapaneseVowels", "digits"),
        {},
        {
            "lru": {"model.cell": "lru"},
            "half of its steps": {"model.cell": "lru", "share": 0.5},
            "a fifth": {"model.cell": "lru", "share": 0.2},
            "closed form, lru, 256 units": {**SOLVED, "model.cell": "lru", "model.hidden_size": 256},
            "64 units": {**SOLVED, "model.cell": "lru"},
            "lipschitz, 256 units": {**SOLVED, "model.cell": "lipschitz", "model.hidden_size": 256},
            "gru, 256 units": {**SOLVED, "model.cell": "gru", "model.hidden_size": 256},
        },
        seeds=(0,),
        refits_small=True,
    ),
    "closed-form-forecast": Comparison(
        ("daily-min-temperatures", "ETTh1"),
        {},
        {
            "lipschitz": {"model.cell": "lipschitz"},
            "a fifth of its steps": {"model.cell": "lipschitz", "share": 0.2},
            "closed form, linear skip": {**SOLVED, "model.cell": "lru"},
            "layers of lru alone": {**SOLVED, "model.cell": "lru", "model.skip": "none"},
        },
        seeds=(0,),
    ),
    "longer-forecasts": Comparison(
        ("m4-hourly", "ETTh1"),
        {"model.cell": "lipschitz"},
        {
            "default": {},
            "four members": {"model.members": 4},
            "128 units": {"model.hidden_size": 128},
            "128 units, twice the rate": {"model.hidden_size": 128, "training.lr": 0.01},
            "20 epochs": {"training.epochs": 20},
            "20 epochs, 128 units": {"training.epochs": 20, "model.hidden_size": 128},
        },
        seeds=(0,),
        parts=2,
    ),
    "many-windows": Comparison(
        ("m4-hourly",),
        {"model.cell": "lipschitz", "model.hidden_size": 128, "training.lr": 0.01},
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
        {"model.cell": "lipschitz", "model.hidden_size": 128, "training.lr": 0.01, "training.max_steps": 2000},
        {"validation steps held out": {}, "trained on": {"training.refit": True}},
        seeds=(0,),
        parts=2,
    ),
    "certified": Comparison(
        (*PROBLEMS, *FORECASTS),
        {"model.cell": "lipschitz"},
        {"free": {"training.certified": False}, "certified": {"training.certified": True}},
        seeds=(0,),
    ),
}
