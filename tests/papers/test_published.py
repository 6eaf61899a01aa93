"""What is printed of a paper is what the paper prints, and sizes are matched by counting."""

from __future__ import annotations

import pytest
import torch

from stablernn.cells import cell_info
from stablernn.nn.models import Classifier
from stablernn.training.settings.load import validate
from stablernn_papers.kinds.trained import hidden_size, matched_hidden_size
from stablernn_papers.table import ProtocolName, Row
from stablernn_papers.tables import TABLES

# Table 3 of the Lipschitz RNN paper, as it was written down when the paper was read.
PRINTED = """
PGD, DF2, DFinf | lmax, trace, condition number of the Hessian
neural ODE RNN 88.5 69.6 44.5 | .30 4.7 37.6
antisymmetric 84.7 83.4 44.3 | .24 4.8 35.5
Lipschitz 93.0 89.2 54.1 | .14 3.1 23.2
"""
NAMES = {"neural ODE RNN": "neural_ode_rnn", "antisymmetric": "antisymmetric", "Lipschitz": "lipschitz"}
INPUTS, CLASSES = 8, 10

# The other tables with figures, as they were written down: ordered and permuted pixels; in order and padded with noise.
MNIST = """
lstm 97.3 92.7 | momentum_lstm 99.1 94.7 | urnn 95.1 91.4 | fc_urnn-116 92.8 92.1 | fc_urnn-512 96.9 94.1
soft_orth 94.1 91.4 | kru 96.4 94.5 | antisymmetric 98.0 95.8 | antisymmetric_g 98.8 93.1 | incremental 98.1 95.6
exprnn 98.4 96.2 | nais_net 94.3 90.8 | lipschitz-64 99.0 94.2 | lipschitz_rk2-64 99.1 94.2
lipschitz-128 99.4 96.3 | lipschitz_rk2-128 99.3 96.2
"""
CIFAR10 = """
lstm 59.7 11.6 | antisym_ablation 54.6 46.2 | antisymmetric 58.7 48.3 | antisymmetric_g 62.2 54.7 | incremental - 54.5
lipschitz-128 60.5 57.4 | lipschitz_rk2-128 60.3 57.3 | lipschitz-256 64.2 59.0 | lipschitz_rk2-256 64.2 58.9
"""
PTB_CHAR = """
rnn 2.89 2.90 | rnn_orth 1.62 1.66 | eunn 1.61 1.62 | exprnn 1.49 1.52 | nnrnn 1.47 1.49 | antisymmetric 1.60 1.64
lipschitz 1.43 1.46
"""
PTB_WORD = """
lstm 117.41 | spectral_rnn 130.20 | fastrnn 127.76 | fastgrnn_lsq 115.92 | fastgrnn 116.11 | incremental 115.71
lipschitz 115.36
"""


def parameter_count(cell: str, size: int, inputs: int, classes: int) -> int:
    with torch.random.fork_rng(devices=[]):
        model = Classifier(cell, inputs, classes, size)
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


@pytest.mark.parametrize(
    ("key", "text"),
    [("mnist-pixel", MNIST), ("cifar10", CIFAR10), ("ptb-char", PTB_CHAR), ("ptb-word", PTB_WORD)],
)
def test_the_first_column_of_each_data_set_is_that_of_the_paper(key: str, text: str) -> None:
    table = TABLES[key]
    printed = {}
    for entry in text.replace("\n", " | ").split(" | "):
        name, *figures = entry.split()[:3] if entry.strip() else [""]
        if name:
            printed[name] = [None if figure == "-" else float(figure) for figure in figures]
    data = [entry for entry in table.data if not entry.is_optional]
    assert {
        row.key: [(row.published.get(entry.key) or (None,))[0] for entry in data] for row in table.rows if row.published
    } == printed


def test_the_settings_of_the_preset_are_those_of_the_papers_table_8() -> None:
    options = cell_info("lipschitz").options("paper")
    printed = {"skew_weight": 0.75, "linear_damping": 0.001, "recurrent_damping": 0.001, "step_size": 0.03}
    assert {name: options[name] for name in printed} == printed
    for key in ("lipschitz-64", "lipschitz-128"):
        table = TABLES["mnist-pixel"]
        row = table.row(key)
        rates = [validate(table.run_tree(row, data, "full")).training.lr for data in table.data]
        assert rates == [0.003, 0.0035]
        assert validate(table.run_tree(row, table.data[0], "full")).model.cell_options == {}


def test_the_published_figures_are_those_of_the_paper() -> None:
    found = {}
    for line in PRINTED.strip().splitlines()[1:]:
        *words, pgd, df2, dfinf, bar, lmax, trace, condition = line.split()
        assert bar == "|"
        found[NAMES[" ".join(words)]] = tuple(map(float, (pgd, df2, dfinf, lmax, trace, condition)))
    table = TABLES["robustness"]
    assert {row.cell: row.published["mnist-rows"] for row in table.rows if row.published} == found
    columns = [column for column in table.columns if column.is_published]
    assert [column.title for column in columns] == ["PGD", "DF2", "DFinf", "lmax", "trace", "condition"]
    assert [column.percent for column in columns] == [True] * 3 + [False] * 3


def test_the_gated_cells_have_as_many_parameters_as_lipschitz_with_64_units() -> None:
    table = TABLES["robustness"]

    def count(row: Row, size: int) -> int:
        return parameter_count(row.cell, size, INPUTS, CLASSES)

    sizes = {row.cell: hidden_size(table, row, count) for row in table.rows}
    assert (sizes["exprnn"], sizes["lstm"], sizes["gru"]) == (64, 43, 50)
    assert {cell: parameter_count(cell, sizes[cell], INPUTS, CLASSES) for cell in ("lipschitz", "lstm", "gru")} == {
        "lipschitz": 9418,
        "lstm": 9384,
        "gru": 9410,
    }


@pytest.mark.parametrize("cell", ["lstm", "gru", "exprnn", "antisymmetric"])
@pytest.mark.parametrize("wanted", [1, 700, 5000])
def test_no_other_size_is_nearer(cell: str, wanted: int) -> None:
    found = matched_hidden_size(lambda size: parameter_count(cell, size, INPUTS, CLASSES), wanted)

    def distance(size: int) -> int:
        return abs(parameter_count(cell, size, INPUTS, CLASSES) - wanted)

    assert all(distance(found) < distance(size) for size in range(1, found))
    assert all(distance(found) <= distance(size) for size in range(found + 1, found + 4))


@pytest.mark.parametrize("name", ["full", "short"])
def test_nothing_is_in_the_protocol_that_the_paper_does_not_have(name: ProtocolName) -> None:
    table = TABLES["robustness"]
    settings = validate(table.run_tree(table.row("lipschitz"), table.data[0], name))
    assert (settings.data.source, settings.data.length) == ("mnist-rows", 98)
    assert (settings.model.readout, settings.model.patch_size, settings.model.patch_embedding) == ("last", 1, 0)
    assert (settings.model.members, settings.model.num_layers, settings.model.head_dropout) == (1, 1, 0)
    training = settings.training
    assert (training.label_smoothing, training.time_warp, training.jitter, training.rescale) == (0, 0, 0, 0)
    assert training.calibrate is False
    assert training.keep_epochs
