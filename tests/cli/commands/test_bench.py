"""`bench`: its tables and conditions, and that the rows compute the same thing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from cli_helpers import Workplace
from stablernn.engines import list_engines
from stablernn.export.step import export_parts
from stablernn_cli import bench as bench_rows
from stablernn_cli.bench import Sizes, layer_products
from step_forms import HAS_NATIVE, needs_native

TINY = "--hidden-size 4 --batch-size 2 --length 8 --rounds 2"
PEERS = ["nn.LSTM", "nn.GRU", "nn.RNN"]
STEP_ROWS = [
    "limit",
    "step.onnx, session.run",
    "step.onnx, bound buffers",
    "step of a stream in the server's runtime",
    *(
        f"engine native of serve, {kind}"
        for kind in ("session.run", "buffers", "a stream in the runtime")
        if HAS_NATIVE
    ),
    "torch, step by step",
    "nn.LSTM, step by step",
    "ONNX Runtime's LSTM, step by step",
]


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_rows, "STEPS_PER_RUN", 3)


def names(table: dict[str, Any]) -> list[str]:
    return [row["row"] for row in table["rows"]]


def test_each_part_is_a_table_with_its_rows_and_conditions(empty: Workplace) -> None:
    result = empty.ok(f"bench {TINY} --json")
    document = result.json
    assert document["sizes"] == {
        "cell": "antisymmetric",
        "hidden_size": 4,
        "batch_size": 2,
        "length": 8,
        "num_layers": 1,
        "members": 1,
    }
    facts = document["conditions"]
    assert (facts["threads"], facts["rounds"], facts["clock"]) == (1, 2, "cpu_ms")
    assert facts["torch"] == torch.__version__
    assert facts["denormals"] in ("flushed", "not flushed")
    train, sequence, step = document["tables"]
    assert [(table["part"], table["unit"]) for table in document["tables"]] == [
        ("train", "ms"),
        ("sequence", "ms"),
        ("step", "us"),
    ]
    others = ("cuda-graph", "pooled", "scan", "shooting", "structured", "torch-rnn")
    # Triton's interpreter runs in processes of tests alone.
    names_here = [name for name in list_engines() if not name.startswith("triton")]
    engines = [f"engine {name}" for name in names_here if name not in others]
    assert names(train) == ["limit", *engines, "hand-written loop", *PEERS]
    native = ["engine native of serve"] if HAS_NATIVE else []
    peers = ["engine auto of torch", "nn.LSTM", "ONNX Runtime's LSTM"]
    assert names(sequence) == ["limit", "sequence.onnx", *native, *peers]
    assert names(step) == STEP_ROWS
    for table in document["tables"]:
        for row in table["rows"]:
            assert row[f"cpu_{table['unit']}"] >= 0
            assert row[f"wall_{table['unit']}"] >= 0
            assert 0 <= row["ratio_low"] <= row["ratio"] <= row["ratio_high"]
        assert table["rows"][0]["ratio"] == 1
    progress = ["Loading ...", *(f"Timing {part}, 2 rounds ..." for part in ("train", "sequence", "step"))]
    assert result.err.splitlines() == progress


def test_a_cell_without_a_step_form_has_the_engines_that_run_it(empty: Workplace) -> None:
    (table,) = empty.document(f"bench {TINY} --cell lstm --part train")["tables"]
    assert names(table) == ["limit", "engine loop", "engine torch-rnn", *PEERS]


@needs_native
@pytest.mark.slow
def test_the_engine_of_the_server_computes_the_model_of_its_row() -> None:
    model = bench_rows.bench_model(Sizes("antisymmetric", 4, 2, 8))
    native, x = bench_rows.open_native(model, export_parts(model), threads=1), torch.randn(2, 8, 1)
    assert native is not None
    (logits,) = native.sequence.run(["logits"], bench_rows.sequence_feeds(model, x))
    np.testing.assert_allclose(logits, model(x).numpy(), atol=1e-6)
    other = bench_rows.bench_model(Sizes("lstm", 4, 2, 8))
    assert bench_rows.open_native(other, export_parts(other), threads=1) is None


@pytest.mark.slow
@pytest.mark.parametrize("part", ["train", "sequence", "step"])
def test_layers_and_members_on_two_threads(empty: Workplace, part: str) -> None:
    stacked = f"--cell lstm --num-layers 2 --members 2 --threads 2 --part {part}"
    document = empty.document(f"bench {TINY} {stacked}")
    assert [table["part"] for table in document["tables"]] == [part]
    assert (document["conditions"]["threads"], document["conditions"]["clock"]) == (2, "wall_ms")


def test_the_command_restores_threads_and_denormal_numbers(empty: Workplace) -> None:
    before = (torch.get_num_threads(), bench_rows.is_flushing())
    empty.ok(f"bench {TINY} --part train --threads {before[0] + 1} --json")
    assert (torch.get_num_threads(), bench_rows.is_flushing()) == before


def test_denormal_numbers_are_flushed_where_rows_were_built_that_turn_it_off() -> None:
    flushing = []
    rows = {"limit": lambda: flushing.append(bench_rows.is_flushing())}
    with bench_rows.pinned(1) as is_flushed:
        # As the first session of ONNX Runtime in a process does.
        torch.set_flush_denormal(False)
        bench_rows.measure(rows, rounds=2)
    assert flushing == [is_flushed] * 3


@pytest.mark.parametrize("cell", ["antisymmetric", "lipschitz", "lipschitz_rk2", "antisymmetric_g", "rnn"])
def test_the_loop_written_by_hand_computes_what_the_engines_compute(cell: str) -> None:
    torch.manual_seed(0)
    sizes = Sizes(cell, 4, 2, 8, num_layers=2, members=2)
    model, by_hand = bench_rows.EnsembleState(sizes, "loop"), bench_rows.HandWritten(sizes)
    by_hand.load_state_dict(model.state_dict())
    x = torch.randn(2, 8, 1)
    torch.testing.assert_close(by_hand(x), model(x))


def test_the_lstm_of_onnx_runtime_computes_what_torch_computes() -> None:
    torch.manual_seed(0)
    sizes = Sizes("lstm", 4, 2, 8, num_layers=2, members=2)
    lstms = [bench_rows._lstm(sizes) for _ in range(2)]
    x = torch.randn(2, 8, 1)
    states = bench_rows._lstm_states(sizes, 2)
    session = bench_rows._open_lstm(lstms, threads=1)
    outputs = dict(
        zip(states, session.run([f"{name}_out" for name in states], {"x": x.numpy(), **states}), strict=True)
    )
    for member, lstm in enumerate(lstms):
        _, (h, c) = lstm(x)
        for name, expected in (("h", h), ("c", c)):
            for depth in range(2):
                np.testing.assert_allclose(
                    outputs[f"{name}_{member}_{depth}"][0], expected[depth], rtol=1e-4, atol=1e-6
                )


@pytest.mark.parametrize(
    ("cell", "recurrent", "drive_size"),
    [("antisymmetric", 1, 5), ("lipschitz", 2, 5), ("lipschitz_rk2", 4, 5), ("antisymmetric_g", 1, 10), ("gru", 1, 15)],
)
def test_the_limit_counts_the_products_of_a_cell(cell: str, recurrent: int, drive_size: int) -> None:
    first, second = layer_products(Sizes(cell, 5, 2, 8, num_layers=2))
    assert first == (recurrent, None)
    assert second == (recurrent, (5, drive_size))


def test_figures_are_medians_and_ratios_of_the_same_round() -> None:
    durations = {"limit": iter([9, 1, 2, 4]), "row": iter([9, 3, 4, 20])}
    rows = {name: lambda values=values: bench_rows.Times(next(values), 0.5) for name, values in durations.items()}
    was_flushing = bench_rows.is_flushing()
    figures = bench_rows.measure(rows, rounds=3, clock="wall_ms")
    assert bench_rows.is_flushing() == was_flushing
    assert figures["row"] == {"cpu_ms": 0.5, "wall_ms": 4, "ratio": 3, "ratio_low": 2.5, "ratio_high": 4}
