"""What is printed of a paper is what the paper prints, and sizes are matched by counting."""

from __future__ import annotations

import pytest
import torch

from stablernn.errors import UnknownNameError
from stablernn.nn.models import Classifier
from stablernn.reproduce.parameter_matching import hidden_size, matched_hidden_size, parameter_count
from stablernn.reproduce.published_tables import TABLES, published_table
from stablernn.training.settings.load import validate

# Table 3 of the Lipschitz RNN paper, as it was written down when the paper was read.
PRINTED = """
PGD, DF2, DFinf | lmax, trace, condition number of the Hessian
neural ODE RNN 88.5 69.6 44.5 | .30 4.7 37.6
antisymmetric 84.7 83.4 44.3 | .24 4.8 35.5
Lipschitz 93.0 89.2 54.1 | .14 3.1 23.2
"""
NAMES = {"neural ODE RNN": "neural_ode_rnn", "antisymmetric": "antisymmetric", "Lipschitz": "lipschitz"}
INPUTS, CLASSES = 8, 10


def test_the_published_figures_are_those_of_the_paper() -> None:
    found = {}
    for line in PRINTED.strip().splitlines()[1:]:
        *words, pgd, df2, dfinf, bar, lmax, trace, condition = line.split()
        assert bar == "|"
        found[NAMES[" ".join(words)]] = tuple(map(float, (pgd, df2, dfinf, lmax, trace, condition)))
    table = TABLES["robustness"]
    assert {row.cell: row.published for row in table.rows if row.published} == found
    assert [column.title for column in table.columns] == ["PGD", "DF2", "DFinf", "lmax", "trace", "condition"]
    assert [column.percent for column in table.columns] == [True] * 3 + [False] * 3


def test_the_cells_of_the_paper_come_first_and_the_gated_ones_have_no_size_of_their_own() -> None:
    table = TABLES["robustness"]
    assert table.cells == ("neural_ode_rnn", "antisymmetric", "lipschitz", "exprnn", "lstm", "gru")
    assert [row.hidden_size for row in table.rows] == [64, 64, 64, 64, None, None]
    assert [row.cell for row in table.rows if not row.published] == ["exprnn", "lstm", "gru"]


def test_the_counts_are_those_of_the_formulas() -> None:
    size, head = 64, 64 * CLASSES + CLASSES
    shared = size * INPUTS + size + head
    assert parameter_count("lipschitz", size, INPUTS, CLASSES) == 2 * size**2 + shared
    assert parameter_count("neural_ode_rnn", size, INPUTS, CLASSES) == size**2 + shared
    assert parameter_count("lstm", 43, INPUTS, CLASSES) == 4 * 43 * (43 + INPUTS + 1) + 43 * CLASSES + CLASSES
    assert parameter_count("gru", 50, INPUTS, CLASSES) == 3 * 50 * (50 + INPUTS + 1) + 50 + 50 * CLASSES + CLASSES


def test_the_gated_cells_have_as_many_parameters_as_lipschitz_with_64_units() -> None:
    table = TABLES["robustness"]
    sizes = {row.cell: hidden_size(table, row, INPUTS, CLASSES) for row in table.rows}
    assert sizes == {
        "neural_ode_rnn": 64,
        "antisymmetric": 64,
        "lipschitz": 64,
        "exprnn": 64,
        "lstm": 43,
        "gru": 50,
    }
    assert {cell: parameter_count(cell, sizes[cell], INPUTS, CLASSES) for cell in ("lipschitz", "lstm", "gru")} == {
        "lipschitz": 9418,
        "lstm": 9384,
        "gru": 9410,
    }


@pytest.mark.parametrize("cell", ["lstm", "gru", "exprnn", "antisymmetric"])
@pytest.mark.parametrize("wanted", [1, 700, 5000])
def test_no_other_size_is_nearer(cell: str, wanted: int) -> None:
    found = matched_hidden_size(cell, wanted, INPUTS, CLASSES)

    def distance(size: int) -> int:
        return abs(parameter_count(cell, size, INPUTS, CLASSES) - wanted)

    assert all(distance(found) < distance(size) for size in range(1, found))
    assert all(distance(found) <= distance(size) for size in range(found + 1, found + 4))


def test_counting_draws_no_random_numbers() -> None:
    before = torch.get_rng_state()
    parameter_count("lstm", 5, INPUTS, CLASSES)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("name", ["full", "short"])
def test_nothing_is_in_the_protocol_that_the_paper_does_not_have(name: str) -> None:
    table = TABLES["robustness"]
    protocol = table.full if name == "full" else table.short
    tree = {section: dict(values) for section, values in protocol.settings.items()}
    tree["model"] |= {"cell": "lipschitz"}
    settings = validate(tree)
    assert (settings.data.source, settings.data.length) == ("mnist-rows", 98)
    assert (settings.model.readout, settings.model.patch_size, settings.model.patch_embedding) == ("last", 1, 0)
    assert (settings.model.members, settings.model.num_layers, settings.model.head_dropout) == (1, 1, 0)
    training = settings.training
    assert (training.label_smoothing, training.time_warp, training.jitter, training.rescale) == (0, 0, 0, 0)
    assert training.calibrate is False
    assert training.keep_epochs


@pytest.mark.parametrize("table", TABLES.values(), ids=list(TABLES))
def test_a_table_is_consistent_in_itself(table) -> None:
    assert table.row(table.reference).hidden_size is not None
    for row in table.rows:
        assert len(row.published) in (0, len(table.columns))
        Classifier(row.cell, INPUTS, CLASSES, row.hidden_size or 4)
    for protocol in (table.full, table.short):
        assert protocol.attacks is not None
        assert {table.headline["pgd"], table.headline["deepfool_linf"]} <= {*protocol.attacks.linf_budgets}
        assert table.headline["deepfool_l2"] in protocol.attacks.l2_budgets
    assert len(table.full.seeds) > 1


def test_an_unknown_table_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"^Unknown table 'robustnes'\. Did you mean 'robustness'\? See "):
        published_table("robustnes")
