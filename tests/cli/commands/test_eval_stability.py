"""`eval --stability`: what is proved beside what is observed, of runs and of versions."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cli_helpers import Workplace, copied
from stablernn_registry import Registry
from stablernn_registry.certificates import format_upper


def stability(workplace: Workplace, target: str, *more: object) -> dict[str, Any]:
    document: dict[str, Any] = workplace.ok("-q", "eval", target, "--stability", *more, "--json").json
    return document


@dataclass(frozen=True)
class Measured:
    """A workplace, and by target what `eval --stability` said there."""

    workplace: Workplace
    documents: dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def measured(trained: Workplace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Measured]:
    """Both runs and both versions, once each; not to be changed."""
    with copied(trained, tmp_path_factory.mktemp("measured") / "copy") as copy:
        yield Measured(copy, {t: stability(copy, t) for t in ("digits-run", "digits:1", "load-run", "load:1")})


@pytest.mark.parametrize(("run", "version"), [("digits-run", "digits:1"), ("load-run", "load:1")])
def test_a_version_shows_what_its_run_does(measured: Measured, run: str, version: str) -> None:
    workplace, left, right = measured.workplace, measured.documents[run], measured.documents[version]
    assert left["stability"] == right["stability"]
    assert set(left["stability"]) == {"certificate", "empirical"}
    certified = workplace.ok("-q", "certify", version, "--json").json
    # What is observed is compared with the certificate for all inputs.
    assert certified.pop("bounded_inputs")["inputs"]["lower"]
    # What a wrong value does is bounded for the data, not observed of the layers.
    assert certified.pop("wrong_sample")["effects"]
    assert certified.pop("in_words")
    assert {"target": version, **right["stability"]["certificate"]} == certified


def test_a_run_gets_pictures_and_a_version_a_record(measured: Measured) -> None:
    workplace, left, right = measured.workplace, measured.documents["digits-run"], measured.documents["digits:1"]
    assert left["plots"] == ["digits-run/plots/jacobian_spectrum.png", "digits-run/plots/gradient_norms.png"]
    assert all(workplace.path(plot).read_bytes()[:4] == b"\x89PNG" for plot in left["plots"])
    assert "records" not in left
    assert "plots" not in right
    (record,) = right["records"]
    files = {name: Path(file["path"]) for name, file in record["files"].items()}
    assert (record["kind"], set(files)) == (
        "stability",
        {"stability.json", "plots/jacobian_spectrum.png", "plots/gradient_norms.png"},
    )
    assert files["plots/gradient_norms.png"].read_bytes()[:4] == b"\x89PNG"
    kept = json.loads(files["stability.json"].read_text())
    version = Registry(workplace.registry).get("digits:1")
    assert kept == {
        "weights": f"sha256:{version.manifest.files['weights.safetensors'].sha256}",
        "data": "digits",
        "split": "test",
        **right["stability"],
    }
    assert version.digest == workplace.ok("registry", "show", "digits:1", "--json").json["digest"]
    # Found out once more, it is not kept once more.
    assert stability(workplace, "digits:1")["records"] == [record]
    assert workplace.ok("registry", "verify", "--json").json["ok"] is True


def test_the_figures(workplace: Workplace) -> None:
    found = stability(workplace, "digits:1", "--split", "validation")["stability"]["empirical"]
    assert set(found) == {"jacobian", "lyapunov", "gradients", "sequences", "steps"}
    assert found["sequences"] == 16
    assert found["jacobian"]["size"] == len(found["lyapunov"]["exponents"]) == 8
    assert found["lyapunov"]["exponents"] == sorted(found["lyapunov"]["exponents"], reverse=True)
    assert all(error > 0 for error in found["lyapunov"]["standard_error"])
    radius, largest = found["jacobian"]["spectral_radius"], found["jacobian"]["largest_singular_value"]
    assert radius["least"] <= radius["mean"] <= radius["most"] <= largest["most"]
    assert found["lyapunov"]["exponents"][0] <= math.log(largest["most"])
    low, middle, high = found["gradients"]["slope"].values()
    assert low <= middle <= high


def test_both_parts_for_people(workplace: Workplace) -> None:
    shown = workplace.ok("eval", "digits:1", "--stability").out
    proved, observed = shown.index("\nProved\n"), shown.index("\nObserved on 16 sequences of the test split, ")
    assert proved < observed
    assert "largest factor of a step" not in shown[proved:observed]
    certificate = workplace.ok("certify", "digits:1", "--json").json
    # Upper bounds, which the nearest digits could state too small.
    assert f"contraction rate {format_upper(certificate['contraction_rate'], 6)} " in " ".join(shown.split())
    (hypothesis,) = [row for row in certificate["hypotheses"] if row["name"] == "contraction rate"]
    assert f" (proved: at most {format_upper(hypothesis['value'], 4)})" in shown[observed:]
    assert "Lyapunov exponents" in shown[observed:]
    assert "Proved" not in workplace.ok("eval", "digits:1").out


def test_a_state_that_leaves_no_certificate_is_still_observed(workplace: Workplace) -> None:
    shown = workplace.ok("eval", "load:1", "--stability").out
    assert "Observed on 16 sequences of the test split" in shown


def test_other_data_of_the_same_kind(workplace: Workplace) -> None:
    other = stability(workplace, "load:1", "--data", "load.csv", "--split", "train")["stability"]["empirical"]
    assert (other["sequences"], other["steps"]) == (16, 16 * 12)
