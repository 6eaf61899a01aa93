"""The ranges that `stablernn tune` searches: of the settings that every cell has, and of the options of each cell.

The ranges of a cell's options are those that its paper searched or has values in, else ours around the published value.
Cells that are not listed are searched by the general settings alone.
"""

from __future__ import annotations

from stablernn.training.tune.parameters import Choices, Parameter, Range

CELL = "model.cell"
LAYERS = "model.num_layers"
HIDDEN_SIZE = "model.hidden_size"
DROPOUT = "model.dropout"
PATCH_STRIDE = "model.patch_stride"
PATCH_SIZE = "model.patch_size"
PATCH_OVERLAP = "patch_overlap"
CONTEXT_LENGTH = "task.context_length"

GENERAL: tuple[Parameter, ...] = (
    Parameter("training.lr", Range(1e-4, 1e-1, log=True), "ours: recommended rates lie between 0.001 and 0.03"),
    Parameter("training.weight_decay", Range(0.0, 0.3), "ours: recommended values are 0, 0.05 and 0.3"),
    Parameter(HIDDEN_SIZE, Choices((16, 32, 64, 128, 256)), "ours: the epochs of larger states are not certified"),
    Parameter(LAYERS, Range(1, 3), "ours"),
    Parameter(DROPOUT, Range(0.0, 0.5), "ours; with two layers or more"),
)
"""Parameters of every task."""

STRIDE_FACTORS = (0.5, 1, 2)
"""Patch strides of a classification, as factors of the recommended one."""
OVERLAPS = Choices((1, 2, 4, 8))
"""Patch sizes of a classification, in strides."""
CONTEXT_FACTORS = (1, 2, 4)
"""Context lengths of a forecast, as factors of the recommended one: whole seasons stay whole."""

_ANTISYMMETRIC = "Chang and others 2019: their grids"
_LIPSCHITZ = "Erichson and others 2021: what they searched"
_LIPSCHITZ_TABLES = "Erichson and others 2021: the values of their tables lie between"
_STEP_SIZE = Parameter("step_size", Range(0.01, 1.0, log=True), _ANTISYMMETRIC)
_DAMPING = Parameter("damping", Range(0.001, 1.0, log=True), _ANTISYMMETRIC)
_INIT_SCALE = Parameter("init_scale", Choices((0.0, 1.0, 2.0, 4.0, 8.0, 16.0)), _ANTISYMMETRIC)
_LIPSCHITZ_OPTIONS = (
    Parameter("step_size", Range(0.001, 1.0, log=True), _LIPSCHITZ),
    Parameter("skew_weight", Range(0.5, 1.0), _LIPSCHITZ_TABLES),
    Parameter("linear_damping", Range(0.001, 1.0, log=True), _LIPSCHITZ_TABLES),
    Parameter("recurrent_damping", Range(0.001, 1.0, log=True), _LIPSCHITZ_TABLES),
)
_NNRNN = "Kerg and others 2019: their settings lie between"
_KEPT_SHARE = "Kusupati and others 2018: their settings lie between"
_INPUT_SCALE = "Nguyen and others 2020: their settings lie between"

CELL_OPTIONS: dict[str, tuple[Parameter, ...]] = {
    "antisym_ablation": (_STEP_SIZE, _INIT_SCALE),
    "antisymmetric": (_STEP_SIZE, _DAMPING, _INIT_SCALE),
    "antisymmetric_g": (_STEP_SIZE, _DAMPING, _INIT_SCALE),
    "eunn": (
        Parameter(
            "capacity",
            Range(2, 16, step=2),
            "Jing and others 2017: from 2, up to the smallest hidden size that is searched",
            recommended=2,
        ),
    ),
    "fastgrnn": (
        Parameter("input_kept", Range(0.3, 1.0), _KEPT_SHARE),
        Parameter("recurrent_kept", Range(0.3, 1.0), _KEPT_SHARE),
    ),
    "incremental": (Parameter("inner_steps", Range(1, 5), "Kag and others 2020: 1, 2, 3 and 5"),),
    "kru": (Parameter("penalty_weight", Range(1e-3, 1e-1, log=True), "ours: a factor of ten around the default"),),
    "lipschitz": _LIPSCHITZ_OPTIONS,
    "lipschitz_rk2": _LIPSCHITZ_OPTIONS,
    "lvf": (Parameter("step_size", Range(0.01, 1.0, log=True), "ours: a factor of ten around the default"),),
    "lvf_mid": (Parameter("step_size", Range(0.1, 2.0, log=True), "ours: any step keeps norms"),),
    "momentum_lstm": (
        Parameter("momentum", Range(0.0, 0.9), _INPUT_SCALE),
        Parameter("input_scale", Range(0.1, 1.0), _INPUT_SCALE),
    ),
    "nais_net": (
        Parameter("margin", Range(0.001, 0.49, log=True), "Ciccone and others 2018: between 0 and 0.5, both excluded"),
    ),
    "neural_ode_rnn": (Parameter("step_size", Range(0.001, 1.0, log=True), _LIPSCHITZ),),
    "nnrnn": (
        Parameter("gain_penalty", Range(1e-6, 1.0, log=True), _NNRNN),
        Parameter("upper_penalty", Range(1e-8, 1e-4, log=True), _NNRNN),
    ),
    "noisy_rnn": (
        Parameter("additive_noise", Range(0.02, 0.05), "Lim and others 2021: their settings lie between"),
        Parameter("multiplicative_noise", Range(0.02, 0.05), "Lim and others 2021: their settings lie between"),
    ),
    "scornn": (
        Parameter(
            "negative_signs",
            Range(0.0, 0.5),
            "Helfrich and others 2018: none to half of the units",
            is_share=True,
            recommended=0.1,
        ),
    ),
    "soft_orth": (
        Parameter(
            "penalty_weight", Range(1e-5, 1.0, log=True), "ours: wide around the default and the published value"
        ),
    ),
    "spectral_rnn": (
        Parameter(
            "num_reflections",
            Range(0.05, 1.0),
            "Zhang and others 2018: up to all of the units",
            is_share=True,
            recommended=0.25,
        ),
        Parameter("margin", Range(0.001, 0.1, log=True), "ours: a factor of ten around the published value"),
    ),
    "sr_lstm": (
        Parameter("restart", Range(2, 40, log=True), _INPUT_SCALE),
        Parameter("input_scale", Range(0.1, 1.0), _INPUT_SCALE),
    ),
}
"""Options of the cells, by the keys of the catalog; the names of the parameters are those of the options."""
