"""The kernels of the engine ``triton`` compile for a GPU: the interpreter takes what the compiler refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed"),
]
SCRIPT = Path(__file__).parents[1] / "support" / "engines" / "triton_compile.py"
FAMILIES = [
    ("plain", False),
    ("residual", False),
    ("residual", True),
    ("two-stage", False),
    ("two-stage", True),
    ("shared gate", False),
]


def compile_all(cases: list[dict[str, Any]], cache: Path) -> list[dict[str, Any]]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    environment["TRITON_CACHE_DIR"] = str(cache)
    process = subprocess.run(
        [sys.executable, str(SCRIPT)], input=json.dumps(cases), capture_output=True, text=True, env=environment
    )
    assert process.returncode == 0, process.stderr[-3000:]
    results: list[dict[str, Any]] = json.loads(process.stdout)
    return results


def case(
    family: str, has_linear: bool, precision: str, hidden: int, is_backward: bool, **options: object
) -> dict[str, Any]:
    return {
        "family": family,
        "has_linear": has_linear,
        "precision": precision,
        "hidden": hidden,
        "is_backward": is_backward,
        "options": options,
    }


def assert_fits(cases: list[dict[str, Any]], cache: Path) -> None:
    for described, result in zip(cases, compile_all(cases, cache), strict=True):
        assert result["shared"] <= result["planned"], (described, result)
        # Some numbers at most, and other ones in each release of Triton; a matrix that does not fit is kilobytes.
        assert result["spilled"] <= 128, (described, result)
        assert (result["tensor_cores"] > 0) == (described["precision"] != "ieee"), (described, result)


def test_the_kernels_compile(tmp_path: Path) -> None:
    irregular = {"IS_TIMED": True, "HAS_LENGTHS": True, "SUBSTEPS": 3}
    cases = [
        case("plain", False, "ieee", 128, False),
        case("residual", True, "ieee", 128, True, **irregular),
        case("two-stage", True, "tf32", 128, False, **irregular),
        case("shared gate", False, "bf16", 300, True),
    ]
    assert_fits(cases, tmp_path)


def test_the_kernel_of_diagonal_recurrences_compiles(tmp_path: Path) -> None:
    constants = {"UNITS": 67, "IS_REVERSED": True, "BLOCK": 64, "STAGES": 6}
    cases = [
        {"scan": {**constants, "PARTS": kind[0], "IS_CONSTANT": kind[1], "HAS_PRODUCTS": kind[2]}, "dtype": dtype}
        for kind in ((2, True, True), (2, True, False), (1, False, False))
        for dtype in ("fp32", "fp64")
    ]
    for described, result in zip(cases, compile_all(cases, tmp_path), strict=True):
        assert result["shared"] <= 48 * 1024, described
        assert result["spilled"] == 0, described


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["ieee", "tf32", "bf16"])
@pytest.mark.parametrize("hidden", [1, 33, 64, 128, 200, 512])
def test_every_kernel_fits(precision: str, hidden: int, tmp_path: Path) -> None:
    cases = [
        case(family, has_linear, precision, hidden, is_backward)
        for family, has_linear in FAMILIES
        for is_backward in (False, True)
    ]
    if precision == "ieee" and hidden > 128:
        cases = [{**described, "streamed_rows": rows} for described in cases for rows in (1, 2, 4)]
    assert_fits(cases, tmp_path)
