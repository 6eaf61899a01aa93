"""Training with ``--certified``: what is proved in the end, what the log says, what is refused, resumed runs."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cli_helpers import NO_PLOTS, Workplace
from stablernn.certificates.certificate import certify, prove
from stablernn.certificates.projection import BY_CONSTRUCTION
from stablernn.errors import TrainingError
from stablernn.nn.models import Classifier
from stablernn.training import load_config, load_run, load_run_data
from stablernn.training.loop import certificate_log
from stablernn.training.loop.certificate_log import StabilityLog, check_certified, is_due
from stablernn.training.resolve import resolve
from stablernn.training.tasks import task_for
from stablernn_registry import Registry

CONTRACTING = (
    *("rnn", "identity_rnn", "rnn_orth", "soft_orth", "indrnn", "fastrnn", "noisy_rnn", "lipschitz_rk2", "lru", "ren"),
    *("spectral_rnn", "kru", "nnrnn", "incremental"),
)
NON_EXPANSIVE = ("antisymmetric", "neural_ode_rnn")
WITHIN_RANGE = ("antisym_ablation", "antisymmetric_g", "fastgrnn_lsq", "lstm", "momentum_lstm", "ode_lstm", "sr_lstm")
OPTIONS: dict[str, tuple[object, ...]] = {
    "gru_d": ("--set", "model.cell_options.imputation=none"),
    # At the wild rate these diverge, certified or not: their states have no bound.
    "nais_net": ("--lr", 0.02),
    "ren": ("--lr", 0.005),
}
QUICK = {"rnn", "antisymmetric", "gru", "lstm"}
"""Cells of the quick tests: each training and its proof are two commands."""
WILD = ("--hidden-size", 3, "--epochs", 2, "--lr", 0.5, "--batch-size", 8)
"""Steps that leave the region at once."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    """A folder with ``waves.npz``, two classes of short sequences."""
    folder = tmp_path_factory.mktemp("certified")
    generator = np.random.default_rng(0)
    y = np.arange(24) % 2
    x = np.sin(np.arange(10)[None, :, None] * (1 + y[:, None, None])) + 0.3 * generator.normal(size=(24, 10, 1))
    np.savez(folder / "waves.npz", x=x.astype(np.float32), y=y)
    return Workplace(folder)


def by_cell(*cells: str) -> Any:
    """A parameter for each cell, of which the quick tests have some."""
    return [pytest.param(cell, marks=[] if cell in QUICK else pytest.mark.slow) for cell in cells]


def lines(run: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def trained(place: Workplace, cell: str, name: str, *more: object) -> list[dict[str, Any]]:
    place.ok("-q", "train", "--data", "waves.npz", "--cell", cell, *WILD, *more, "--run-dir", name)
    return [line["stability"] for line in lines(place.path(name))]


@pytest.mark.parametrize("cell", by_cell(*CONTRACTING))
def test_cells_that_contract_do_so_in_every_epoch(cell: str, place: Workplace) -> None:
    for found in trained(place, cell, cell, "--certified", "--num-layers", 2, *OPTIONS.get(cell, ()), *NO_PLOTS):
        assert found["kind"] == "contracting"
        assert found["contraction_rate"] < 1
        assert found["exponent_bound"] == pytest.approx(math.log(found["contraction_rate"]))
    assert place.ok("certify", cell, "--require", "contracting", "--json").json["kind"] == "contracting"


@pytest.mark.parametrize(
    "cell", by_cell(*NON_EXPANSIVE, *sorted(key for key, kind in BY_CONSTRUCTION.items() if kind == "non-expansive"))
)
def test_cells_that_keep_distances_are_non_expansive(cell: str, place: Workplace) -> None:
    kinds = {found["kind"] for found in trained(place, cell, cell, "--certified", *OPTIONS.get(cell, ()), *NO_PLOTS)}
    assert kinds <= {"contracting", "non-expansive"}
    place.ok("certify", cell, "--require", "non-expansive")


# Nothing is trained of exponential smoothing.
@pytest.mark.parametrize(
    "cell", by_cell(*sorted({key for key, kind in BY_CONSTRUCTION.items() if kind == "bounded"} - {"smoothing"}))
)
def test_cells_that_are_bounded_promise_that_for_all_inputs(cell: str, place: Workplace) -> None:
    options = ("--certified", "--num-layers", 2, *OPTIONS.get(cell, ()), *NO_PLOTS)
    result = place.ok("train", "--data", "waves.npz", "--cell", cell, *WILD, *options, "--run-dir", cell)
    assert "Nothing is proved of how far a wrong value moves a class probability" in result.err
    assert "Train with" not in result.err
    place.ok("certify", cell, "--require", "bounded")


@pytest.mark.parametrize("cell", by_cell(*WITHIN_RANGE))
def test_other_cells_promise_it_for_inputs_within_the_range_of_training(cell: str, place: Workplace) -> None:
    options = ("--certified", "--num-layers", 2, "--members", 2, *NO_PLOTS)
    place.ok("-q", "train", "--data", "waves.npz", "--cell", cell, *WILD, *options, "--run-dir", f"range-{cell}")
    certificate = place.ok("certify", f"range-{cell}", "--json").json
    summary = json.loads(place.path(f"range-{cell}/summary.json").read_text())["certificate"]
    assert (summary["kind"], summary["bounded_inputs"]["kind"]) == ("none", "bounded")
    assert certificate["kind"] == "none"
    assert certificate["bounded_inputs"]["kind"] == "bounded"


@pytest.mark.slow
def test_the_forget_gate_stays_below_one_by_the_margin(place: Workplace) -> None:
    place.ok(
        "-q", "train", "--data", "waves.npz", "--cell", "lstm", *WILD, "--free", *NO_PLOTS, "--run-dir", "free-lstm"
    )
    options = ("--certified", "--set", "training.certified_margin=0.1", *NO_PLOTS)
    place.ok("-q", "train", "--data", "waves.npz", "--cell", "lstm", *WILD, *options, "--run-dir", "gated")
    free, certified = (place.ok("certify", run, "--json").json["bounded_inputs"] for run in ("free-lstm", "gated"))
    # An input gate and a candidate of 1 add 1 a step, of which 0.9 is left in the next.
    assert max(ball["radius"] for ball in certified["state_balls"]) <= 10.01
    assert max(ball["radius"] for ball in free["state_balls"]) > 100


@pytest.mark.slow
def test_the_last_note_says_of_raw_values_what_every_other_place_does(place: Workplace) -> None:
    setting = ("training.certified_margin=0.4", "model.readout=last", "model.patch_embedding=0", "model.patch_size=1")
    options = ("--certified", *NO_PLOTS, *(word for each in setting for word in ("--set", each)))
    note = place.ok(
        "train", "--data", "waves.npz", "--cell", "rnn", *WILD, "--lr", 0.003, *options, "--run-dir", "words"
    ).err
    certificate = place.ok("certify", "words", "--json").json
    first, second = certificate["in_words"]
    assert re.fullmatch(r"A value that is wrong by \S+ moves no class probability by more than \S+, .*", first)
    bound = certificate["wrong_sample"]["effects"][0]["output_change"]
    assert bound <= float(first.split(" by more than ")[1].split(",")[0]) <= 1.1 * bound
    assert f"It is forgotten {certificate['wrong_sample']['forgotten_after']} samples after the last wrong" in second
    assert f"{first} {second}" in note
    exported = place.ok("export", "words", "--name", "words", "--json").json["certificate"]
    assert (exported["wrong_sample"], exported["in_words"]) == (certificate["wrong_sample"], [first, second])
    assert place.ok("certify", "words:1", "--json").json["in_words"] == [first, second]
    card = Registry(place.registry).get("words:1").read("README.md").decode()
    assert f"{first} {second}" in card
    # Stored words are computed again with the rest of the certificate.
    place.ok("registry", "verify", "words:1", "--recompute")


def test_a_run_of_which_nothing_is_proved_names_the_option(place: Workplace) -> None:
    result = place.ok(
        "train", "--data", "waves.npz", "--cell", "lipschitz", *WILD, "--free", *NO_PLOTS, "--run-dir", "unproved"
    )
    option = "Train with training.certified=true (--certified), which keeps 'lipschitz' contracting."
    assert f"class probability, nor that it is forgotten. {option}" in result.err
    assert option in " ".join(place.ok("certify", "unproved").out.split())
    # It is a note, which --quiet leaves out.
    quiet = place.ok(
        "-q", "train", "--data", "waves.npz", "--cell", "rnn", *WILD, "--free", *NO_PLOTS, "--run-dir", "quiet"
    )
    assert "proved of" not in quiet.err


def test_every_epoch_has_the_figures_and_conditions(place: Workplace) -> None:
    found = trained(place, "lipschitz", "lipschitz", "--certified", "--set", "training.certified_margin=0.05")
    assert len(found) == 2
    for line in found:
        figures = line["figures"]
        assert set(figures) == {"mu2_A", "norm_A", "norm_W", "continuous_rate", "largest_euler_step"}
        assert line["contraction_rate"] <= 0.95 + 1e-6
        assert figures["mu2_A"] + figures["norm_W"] < 0
        assert figures["largest_euler_step"] > 0.5
        assert line["conditions"]["theorem 1 (a): mu2(A) + norm(W)"] is True
        assert len(line["conditions"]) == 6
    assert (place.path("lipschitz") / "plots" / "stability.png").read_bytes()[:4] == b"\x89PNG"
    stored = load_config(place.path("lipschitz") / "config.yaml").training
    assert (stored.certified, stored.certified_margin) == (True, 0.05)
    model = load_run(place.path("lipschitz")).model
    # An epoch's figures are found without a search for a better norm.
    assert prove(model, norms=()).rate in (found[0]["contraction_rate"], found[-1]["contraction_rate"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--cell ode_rnn", "'ode_rnn' has no certified region .* leave training.certified out"),
        ("--cell fastgrnn", "recurrent_kept=0.5 and byte_weights=True; set model.cell_options.recurrent_kept to 1"),
        (
            "--cell spectral_rnn --set training.certified_margin=0.01",
            "option margin=0.01, .* model.cell_options.margin",
        ),
        ("--cell lstm --set model.scaling=window", "'lstm' is certified for inputs within .* model.scaling=window"),
        ("--cell lstm --data copy", "'lstm' is certified for inputs within the range .* tokens"),
        ("--cell exprnn --num-layers 2", "'exprnn' is non-expansive, .* model.num_layers=2 with training.certified"),
        (
            "--cell antisymmetric_g --set training.certified_margin=1e-5",
            "hidden_size=64 .* training.certified_margin=1e-05",
        ),
        ("--cell lru --set training.certified_margin=0.1", "not used by 'lru', which is certified by construction"),
    ],
)
def test_what_has_no_region_is_refused(options: str, message: str, place: Workplace) -> None:
    data = () if "--data" in options else ("--data", "waves.npz")
    result = place("train", *data, "--certified", *options.split(), "--run-dir", "refused")
    assert result.code == 2
    assert re.search(message, result.sentence)
    assert not place.path("refused").exists()


@pytest.mark.slow
def test_a_refusal_names_all_options_that_a_region_needs(place: Workplace) -> None:
    """Set as the sentence says, the same command trains."""
    command = ("train", "--data", "waves.npz", "--cell", "fastgrnn", "--certified", *WILD, *NO_PLOTS)
    sentence = place(*command, "--run-dir", "refused").sentence
    settings = re.findall(r"(model\.cell_options\.\w+) to (\w+)", sentence)
    overrides = [word for key, value in settings for word in ("--set", f"{key}={value}")]
    place.ok("-q", *command, *overrides, "--run-dir", "bounded-fastgrnn")
    assert place.ok("certify", "bounded-fastgrnn", "--json").json["bounded_inputs"]["kind"] == "bounded"


@pytest.mark.parametrize(
    ("overrides", "is_certified"),
    [
        ("model.cell=lipschitz", True),
        ("model.cell=lipschitz training.certified=false", False),
        ("model.cell=lipschitz model.preset=paper", False),
        ("model.cell=lipschitz model.preset=paper training.certified=true", True),
        ("model.cell=lipschitz model.cell_options.skew_weight=1", False),
        ("model.cell=exprnn", True),
        ("model.cell=exprnn model.num_layers=2", False),
        ("model.cell=unicornn", False),
        # Regions that cost accuracy are kept on request only.
        ("model.cell=gru", True),
        ("model.cell=lstm", False),
        ("model.cell=antisymmetric", False),
    ],
)
def test_training_is_certified_where_it_can_be(overrides: str, is_certified: bool, place: Workplace) -> None:
    config = load_config(overrides=[f"data.source={place.path('waves.npz')}", *overrides.split()])
    assert resolve(config, task_for(load_run_data(config))).training.certified is is_certified


def test_weights_of_which_less_is_proved_end_the_run(place: Workplace) -> None:
    trained(place, "lipschitz", "free-again", "--free", *NO_PLOTS)
    model = load_run(place.path("free-again")).model
    proved = certify(model)
    with pytest.raises(TrainingError, match=f"are 'none', with a rate of {proved.rate:.7g}, .* 'contracting'"):
        check_certified(model, proved)
    check_certified(model, replace(proved, kind="contracting"))


def test_free_runs_are_certified_ever_more_seldom() -> None:
    assert [epoch for epoch in range(1, 81) if is_due(epoch)] == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64]


def test_large_models_say_once_that_they_are_not_followed(place: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    trained(place, "rnn", "small", *NO_PLOTS)
    model = load_run(place.path("small")).model
    monkeypatch.setattr(certificate_log, "LARGEST", 2)
    log = StabilityLog(model)
    told = "hidden_size 3 is above 2; `stablernn certify` says in the end what is proved"
    assert [log.entry(epoch) for epoch in (1, 2)] == [{"stability": {"skipped": told}}, {}]


def test_the_certificate_of_the_same_weights_is_computed_once(place: Workplace) -> None:
    trained(place, "rnn", "once", *NO_PLOTS)
    model = load_run(place.path("once")).model
    assert isinstance(model, Classifier)
    log = StabilityLog(model)
    first = log.prove()
    # What calibration sets is no weight of a certificate.
    model.temperature.fill_(3.0)
    assert log.prove() is first
    with torch.no_grad():
        model.rnn.cells[0].weight_ih.mul_(1.5)
    second = log.prove()
    assert second is not first
    assert second.document() == prove(model, stored=False).document()
