"""The kernels alone, called on NumPy's memory."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from step_forms import needs_native

pytestmark = needs_native

try:
    from stablernn_native import bindings as kernels
except ImportError:
    PATHS: list[str] = []
else:
    PATHS = kernels.available_paths()

DTYPES = {"float32": np.float32, "float64": np.float64}


def tanh(path: str, x: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    out = np.empty_like(x)
    dtype = list(DTYPES.values()).index(x.dtype.type)
    kernels.check(
        kernels.load_kernels().srnn_tanh(kernels.path_number(path), dtype, x.size, x.ctypes.data, out.ctypes.data)
    )
    return out


def ulps(value: np.ndarray[Any, Any], exact: np.ndarray[Any, Any]) -> float:
    """The largest difference in units of the last place of the exact value."""
    spacing = np.spacing(np.abs(exact).astype(value.dtype)).astype(exact.dtype)
    return float((np.abs(value - exact) / spacing).max())


@pytest.mark.parametrize("path", PATHS)
def test_tanh_in_single_precision(path: str) -> None:
    # Every 1,009th number, from the denormal ones to the largest.
    positive = np.arange(0, 0x7F800000, 1009, dtype=np.uint32).view(np.float32)
    for x in (positive, -positive):
        assert ulps(tanh(path, x), np.tanh(x.astype(np.float64))) < 4
    assert np.abs(tanh(path, positive)).max() == 1


@pytest.mark.parametrize("path", PATHS)
def test_tanh_in_double_precision(path: str) -> None:
    random = np.random.default_rng(0)
    x = np.concatenate([10 ** random.uniform(-323, 308, 100_000), random.uniform(-20, 20, 100_000)])
    if np.finfo(np.longdouble).nmant <= np.finfo(np.float64).nmant:
        pytest.skip("this machine's long double is no longer than a double")
    assert ulps(tanh(path, x), np.tanh(x.astype(np.longdouble))) < 4


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("path", PATHS)
def test_tanh_at_its_ends(path: str, dtype: str) -> None:
    smallest = np.finfo(DTYPES[dtype]).smallest_subnormal
    x = np.array([np.inf, -np.inf, np.nan, 0.0, -0.0, smallest, -smallest], DTYPES[dtype])
    expected = np.array([1, -1, np.nan, 0.0, -0.0, smallest, -smallest], DTYPES[dtype])
    value = tanh(path, x)
    assert np.array_equal(value, expected, equal_nan=True)
    assert np.array_equal(np.signbit(value), np.signbit(expected))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("outputs", "inputs"), [(1, 1), (5, 7), (16, 33), (37, 16), (64, 96)])
def test_the_gradient_of_a_matrix(path: str, dtype: str, outputs: int, inputs: int) -> None:
    random = np.random.default_rng(0)
    # More rows than are added up at a time, of a larger batch, whose other rows and columns are not read.
    steps, rows = 5, 31
    by, x = np.full((steps, rows + 2, outputs + 3), np.nan), np.full((steps, rows + 1, inputs + 5), np.nan)
    by, x = by.astype(DTYPES[dtype]), x.astype(DTYPES[dtype])
    by[:, :rows, :outputs] = random.standard_normal((steps, rows, outputs))
    x[:, :rows, :inputs] = random.standard_normal((steps, rows, inputs))
    sums = random.standard_normal((outputs, inputs)).astype(DTYPES[dtype])
    parts = by[:, :rows, :outputs].astype(np.float64), x[:, :rows, :inputs].astype(np.float64)
    expected = sums + np.einsum("tni,tnj->ij", *parts)
    gradient = kernels.Gradient(
        path=kernels.path_number(path),
        dtype=list(DTYPES).index(dtype),
        outputs=outputs,
        inputs=inputs,
        rows=rows,
        steps=steps,
        by=rows_of(by),
        x=rows_of(x),
        sums=sums.ctypes.data,
    )
    kernels.check(kernels.load_kernels().srnn_add_gradient(ctypes.byref(gradient)))
    assert np.abs(sums - expected).max() < (1e-4 if dtype == "float32" else 1e-12)


def test_a_gradient_without_its_sums_is_refused() -> None:
    array = np.zeros((1, 1, 1), np.float32)
    gradient = kernels.Gradient(path=0, outputs=1, inputs=1, rows=1, steps=1, by=rows_of(array), x=rows_of(array))
    with pytest.raises(kernels.NativeError, match="the call is incomplete or a size is negative"):
        kernels.check(kernels.load_kernels().srnn_add_gradient(ctypes.byref(gradient)))


def rows_of(array: np.ndarray[Any, Any]) -> Any:
    return kernels.Rows(array.ctypes.data, array.strides[0] // array.itemsize, array.strides[1] // array.itemsize)


def test_a_call_that_is_incomplete() -> None:
    call = kernels.Call(path=-1, hidden=4, rows=1, steps=1, substeps=1)
    with pytest.raises(kernels.NativeError) as error:
        kernels.check(kernels.load_kernels().srnn_forward(ctypes.byref(call)))
    assert str(error.value) == (
        "The kernels of stablernn-native refused a call: the call is incomplete or a size is negative."
    )


def test_the_kernels_need_no_torch() -> None:
    code = "import stablernn_native, sys; stablernn_native.current_path(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
