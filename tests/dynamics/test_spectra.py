"""Jacobians along real sequences, their spectra, and gradients on their way back, against closed forms."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bounds.specimens import sampled
from model_helpers import TRAINED, mark_fitted
from stablernn import Classifier, Forecaster, list_cells
from stablernn.certificates.certificate import certify
from stablernn.data import load_data
from stablernn.data.arrays import Samples
from stablernn.data.step_data import StepData, StoredSteps
from stablernn.data.types import SequenceSplit
from stablernn.dynamics import report
from stablernn.dynamics.plots import plot_gradients, spectrum_figure
from stablernn.dynamics.report import Gradients, gradients, observe_dynamics, select_samples
from stablernn.dynamics.spectra import LayerDynamics, certified_radius, largest_step_factors, spectra
from stablernn.errors import CertificateError, DataError
from stablernn.nn.models import SequenceModel, SequencePredictor
from stablernn.plotting import _save


def samples(batch: int = 3, time: int = 7, features: int = 2, seed: int = 0) -> Samples:
    drawn = np.random.default_rng(seed).standard_normal((batch, time, features)).astype(np.float32)
    return Samples(drawn, np.full(batch, time), np.zeros(batch, dtype=np.int64))


def classifier(key: str, hidden_size: int = 4, **options: Any) -> SequenceModel:
    torch.manual_seed(0)
    return mark_fitted(Classifier(key, 2, 3, hidden_size, **options)).eval()


def positive_scalar(factor: float, readout: str) -> SequenceModel:
    """A ReLU of ``factor`` times a scalar state plus the sum of its inputs."""
    model = classifier("identity_rnn", 1, readout=readout)
    with torch.no_grad():
        model.rnn.cells[0].weight_hh.fill_(factor)
        model.rnn.cells[0].weight_ih.fill_(1.0)
    return model


class TestLayers:
    @pytest.mark.parametrize("key", sampled(list_cells(), "lstm", "lru", "urnn", "lipschitz", "gru_d", "sr_lstm"))
    def test_the_jacobian_of_every_cell_is_that_of_differences(self, key: str) -> None:
        layers = LayerDynamics(classifier(key), samples())
        states = layers.trajectory()
        jacobians = layers.jacobians(states, 21)
        assert jacobians.shape == (21, len(layers.directions), len(layers.directions))
        tiny, t = 1e-6, 4
        for column, direction in enumerate(layers.directions):
            move = torch.zeros(layers.size, dtype=torch.float64)
            move[direction] = tiny
            slope = (layers.step(t, states[:, t] + move) - layers.step(t, states[:, t] - move)) / (2 * tiny)
            found = jacobians[t::7, :, column]
            assert found.numpy() == pytest.approx(slope[:, layers.directions].numpy(), abs=1e-7)

    @pytest.mark.parametrize(
        ("key", "depth"),
        sampled(itertools.product(TRAINED, (1, 2)), ("gru", 1), ("cornn", 2), ("lru", 2), ("rnn", 1)),
    )
    def test_no_step_stretches_more_than_is_certified(self, key: str, depth: int) -> None:
        model = classifier(key, 6, num_layers=depth)
        layers, certificate = LayerDynamics(model, samples()), certify(model)
        rows = largest_step_factors(layers.jacobians(layers.trajectory(), 21), layers, certificate)
        proved = certificate.bounds
        assert [row["norm"] for row in rows] == [bound.norm for bound in proved if bound.norm is not None]
        for row, bound in zip(rows, (bound for bound in proved if bound.norm is not None), strict=True):
            assert row["factor"] <= bound.rate

    @pytest.mark.parametrize(
        "options",
        [
            {},
            {"num_layers": 2},
            {"members": 2},
            {"patch_size": 3, "patch_stride": 2, "patch_embedding": 5},
            {"scaling": "window", "window": 4, "mask_channel": True},
        ],
        ids=str,
    )
    @pytest.mark.parametrize("key", ["lipschitz", "lstm"])
    def test_the_trajectory_ends_where_the_model_does(self, key: str, options: dict[str, Any]) -> None:
        model, given = classifier(key, **options), samples(time=9)
        given = given._replace(lengths=np.array([9, 4, 7]))
        layers = LayerDynamics(model, given)
        states = layers.trajectory()
        final = model.final_state(torch.from_numpy(given.x), torch.from_numpy(given.lengths))
        first = len(model.patches.state_roles())
        flat = torch.cat(final[first : first + len(model.rnn.state_roles())], dim=1)
        reached = states[torch.arange(3), layers.lengths]
        assert reached.detach().numpy() == pytest.approx(flat.detach().numpy(), abs=1e-5)

    def test_steps_of_irregular_time_are_as_long_as_they_are(self) -> None:
        model = classifier("lipschitz", max_dt=2.5)
        dt = np.array([[1, 0, 2.5]], dtype=np.float32)
        layers = LayerDynamics(model, samples(batch=1, time=3)._replace(dt=dt))
        jacobians = layers.jacobians(layers.trajectory(), 3)
        assert jacobians[1].numpy() == pytest.approx(np.eye(4))
        assert layers.step_size is None
        assert largest_step_factors(jacobians, layers, certify(model)) == []

    def test_the_circle_of_a_certificate_is_around_every_eigenvalue_or_there_is_none(self) -> None:
        radii = {}
        for key in ("exprnn", "ren", "cornn", "gru_d", "lstm"):
            model = classifier(key)
            layers = LayerDynamics(model, samples())
            radii[key] = certified_radius(layers, certify(model))
            found = spectra(layers.jacobians(layers.trajectory(), 21))
            assert radii[key] is None or found.radii.max() <= radii[key]
        assert [key for key, radius in radii.items() if radius is None] == ["gru_d", "lstm"]
        assert radii["exprnn"] == pytest.approx(1, abs=1e-5)

    def test_a_state_that_is_not_finite_is_refused(self) -> None:
        model = classifier("identity_rnn")
        with torch.no_grad():
            model.rnn.cells[0].weight_hh.fill_(1e30)
        with pytest.raises(CertificateError, match=r"^The state of the layers is not finite on these sequences"):
            LayerDynamics(model, samples(time=40)).trajectory()


class TestSpectra:
    def test_a_rotation_that_shrinks(self) -> None:
        angle, radius = 0.3, 0.8
        turn = [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
        found = spectra(radius * torch.tensor([turn], dtype=torch.float64), step_size=0.5)
        assert np.sort_complex(found.eigenvalues[0]) == pytest.approx(
            [radius * complex(math.cos(angle), sign * math.sin(angle)) for sign in (-1, 1)]
        )
        document = found.document()
        assert document["spectral_radius"]["most"] == pytest.approx(radius)
        assert document["mean_modulus"] == pytest.approx(radius)
        assert document["share_outside"] == 0
        assert document["largest_singular_value"]["most"] == pytest.approx(radius)
        assert document["smallest_singular_value"]["least"] == pytest.approx(radius)
        assert document["departure_from_normality"]["most"] == pytest.approx(0, abs=1e-7)
        assert document["continuous_real_part"]["mean"] == pytest.approx((radius * math.cos(angle) - 1) / 0.5)

    def test_the_departure_of_a_triangle_is_what_stands_above_its_diagonal(self) -> None:
        found = spectra(torch.tensor([[[1.5, 3.0], [0.0, 0.5]]], dtype=torch.float64))
        assert found.departure[0] == pytest.approx(3)
        assert found.document()["share_outside"] == 0.5
        assert found.document()["continuous_real_part"] is None


class TestGradients:
    @pytest.mark.parametrize("readout", ["last", "mean", "max"])
    def test_of_a_scalar_that_stays_positive_in_closed_form(self, readout: str) -> None:
        model, factor = positive_scalar(0.75, readout), 0.75
        given = samples(batch=2, time=6)._replace(lengths=np.array([6, 4]))
        given = given._replace(x=np.abs(given.x).cumsum(axis=1))
        found = gradients(model, LayerDynamics(model, given), given)
        back = np.arange(6)
        # Inputs grow, so that the largest state is the last one.
        expected = (1 - factor ** (back + 1)) / (1 - factor) if readout == "mean" else factor**back
        assert found.ratios[0] == pytest.approx(expected)
        assert found.ratios[1, :4] == pytest.approx(expected[:4])
        assert np.isnan(found.ratios[1, 4:]).all()
        document = found.document()
        assert document["sequences"] == 2
        assert document["first_over_last"]["q0.5"] == pytest.approx((expected[5] + expected[3]) / 2)
        if readout != "mean":
            assert list(document["slope"].values()) == pytest.approx([math.log(factor)] * 3)
            assert document["least_over_most"]["q0.5"] == pytest.approx((expected[5] + expected[3]) / 2)

    def test_are_those_of_going_on_from_the_state_in_the_middle(self) -> None:
        model, given = classifier("lstm", num_layers=2), samples(batch=2)
        found = gradients(model, LayerDynamics(model, given), given)
        exactly, x = classifier("lstm", num_layers=2).double(), torch.from_numpy(given.x).double()
        first = len(exactly.patches.state_roles())
        norms = []
        for seen in (4, 7):
            state = [part.detach().requires_grad_(True) for part in exactly.final_state(x[:, :seen])]
            after = exactly.final_state(x[:, seen:], state=tuple(state)) if seen < 7 else tuple(state)
            logits = exactly.member_logits(after)[:, 0]
            loss = torch.nn.functional.cross_entropy(logits, torch.from_numpy(given.y), reduction="sum")
            parts = torch.autograd.grad(loss, state[first:], allow_unused=True)
            norms.append(torch.cat([part for part in parts if part is not None], dim=1).norm(dim=1))
        assert found.ratios[:, 3] == pytest.approx((norms[0] / norms[1]).numpy(), rel=1e-5)

    def test_a_sequence_whose_end_is_not_scored_is_left_out(self) -> None:
        torch.manual_seed(0)
        model = SequencePredictor("gru", 2, 3, 4).eval()
        given = samples(batch=2)
        y = np.zeros((2, 7), dtype=np.int64)
        y[1, -1] = -1
        given = given._replace(y=y)
        assert gradients(model, LayerDynamics(model, given), given).document()["sequences"] == 1


class TestObserve:
    def test_of_a_classifier(self) -> None:
        torch.manual_seed(0)
        model = mark_fitted(Classifier("gru", 1, 10, 6)).eval()
        found = observe_dynamics(model, load_data("digits", task="classify"))
        document = found.document()
        assert set(document) == {"certificate", "empirical"}
        empirical = document["empirical"]
        assert set(empirical) == {"jacobian", "lyapunov", "gradients", "sequences", "steps"}
        assert (empirical["sequences"], empirical["steps"]) == (16, 16 * 64)
        assert empirical["jacobian"]["samples"] == 256
        assert empirical["gradients"]["sequences"] == 16
        exponents = empirical["lyapunov"]["exponents"]
        assert (len(exponents), empirical["lyapunov"]["warm_up"], empirical["lyapunov"]["steps"]) == (6, 16, 16 * 48)
        assert exponents[0] < math.log(empirical["jacobian"]["largest_singular_value"]["most"])
        assert exponents[-1] > math.log(empirical["jacobian"]["smallest_singular_value"]["least"])
        json.dumps(document, allow_nan=False)

    @pytest.mark.parametrize("head", sampled(["direct", "recursive"], "recursive"))
    def test_of_a_forecaster_the_last_of_each_context(self, head: str) -> None:
        data = load_data("co2", task="forecast", horizon=3, context_length=700)
        torch.manual_seed(0)
        model = Forecaster("lstm", 1, 3, 4, head=head, num_layers=2, scaling="context", window=52)
        found, cut = observe_dynamics(mark_fitted(model).eval(), data), select_samples(data, "test", 512)
        assert found.steps == 16 * 512
        assert found.spectra is not None
        assert found.spectra.eigenvalues.shape == (256, 16)
        whole = data.windows("test").gather([0])
        assert cut.x[0] == pytest.approx(whole.x[0, -512:], nan_ok=True)

    @pytest.mark.parametrize("output", ["categorical", "bernoulli", "real"])
    def test_of_answers_at_every_step(self, output: str) -> None:
        rng = np.random.default_rng(0)
        lengths = [9, 5, 12, 7]
        inputs = [rng.standard_normal((length, 2)).astype(np.float32) for length in lengths]
        targets = {
            "categorical": [rng.integers(0, 2, length) for length in lengths],
            "bernoulli": [(one > 0).astype(np.float32) for one in inputs],
            "real": inputs,
        }[output]
        split = StoredSteps(inputs, targets)
        data = StepData(
            name="drawn",
            output=output,
            tokens=False,
            features=("a", "b"),
            outputs=("a", "b"),
            train=split,
            validation=split,
            test=split,
            continuous=False,
            headline="loss",
            notes={},
            fingerprint="sha256:0",
        )
        torch.manual_seed(0)
        model = mark_fitted(SequencePredictor("gru", 2, 2, 4, output=output)).eval()
        found = observe_dynamics(model, data)
        assert (found.sequences, found.steps) == (4, sum(lengths))
        assert found.gradients.ratios.shape == (4, 12)

    def test_classes_are_found_by_name(self) -> None:
        data = load_data("digits", task="classify")
        names = data.labels[::-1]
        straight, turned = (select_samples(data, "test", 512, labels).y for labels in (None, names))
        assert (turned == 9 - straight).all()
        with pytest.raises(DataError, match=r"^'digits' has the class '0', which the model does not know\.$"):
            select_samples(data, "test", 512, names[:-1])

    def test_of_a_long_state_the_leading_exponents_alone(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(report, "MAX_STATE_SIZE", 19)
        monkeypatch.setattr(report, "EXPONENTS", ((18, 18), (19, 17)))
        torch.manual_seed(0)
        models = {size: mark_fitted(Classifier("rnn", 1, 10, size)).eval() for size in (18, 19, 20)}
        found = {size: observe_dynamics(model, load_data("digits", task="classify")) for size, model in models.items()}
        assert [len(one.lyapunov.exponents) for one in found.values()] == [18, 17, 16]
        assert [one.spectra is None for one in found.values()] == [False, False, True]
        assert found[20].document()["empirical"]["jacobian"] is None

    def test_an_empty_split_is_refused(self) -> None:
        data = load_data("digits", task="classify")
        empty = replace(data, test=SequenceSplit(data.train.x[:0], data.train.lengths[:0], data.train.y[:0], ()))
        with pytest.raises(DataError, match=r"^The split 'test' of 'digits' is empty\. Choose another split\.$"):
            select_samples(empty, "test", 512)


class TestPictures:
    def test_of_what_there_is_little_of(self, tmp_path: Path) -> None:
        alike = spectra(torch.eye(2, dtype=torch.float64)[None].expand(3, 2, 2))
        for number, radius in enumerate((None, 0.999, 40.0)):
            _save(spectrum_figure(alike, radius=radius, title="drawn"), tmp_path / f"{number}.png")
        plot_gradients(tmp_path / "one.png", Gradients(np.ones((1, 1))), title="drawn")
        plot_gradients(tmp_path / "dead.png", Gradients(np.array([[1.0, 0.0, 0.0]])), title="drawn")
        assert all(path.read_bytes()[:4] == b"\x89PNG" for path in tmp_path.iterdir())
        assert len(list(tmp_path.iterdir())) == 5
