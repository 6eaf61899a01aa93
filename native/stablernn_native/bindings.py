"""The functions of ``stablernn_native.h``, called through ctypes, which releases the GIL for each call.

Calls of a kernel run at a time on the threads of torch, where they can be used.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

ABI_VERSION = 4
"""That of the structures below; the library states its own."""
PATH_VARIABLE = "STABLERNN_NATIVE_PATH"
"""The environment variable that forces a path."""

FLOAT32, FLOAT64 = 0, 1
FAMILIES = {"plain": 0, "residual": 1, "two-stage": 2, "shared gate": 3}
# The softshrink of a step form is modReLU with a bias of at most 0.
NONLINEARITIES = {"tanh": 0, "relu": 1, "modrelu": 2, "softshrink": 2}
MIN_THREAD_WORK = 10_000_000
"""Multiplications for which a thread is started: some two milliseconds, against 50 microseconds for the thread."""

_Part = TypeVar("_Part")
_TeamBody = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class NativeError(RuntimeError):
    """The kernels are missing, or refused a call."""


class Rows(ctypes.Structure):
    """``srnn_rows``: numbers over time and rows; strides count elements, and a row is contiguous."""

    _fields_ = (("data", ctypes.c_void_p), ("time_stride", ctypes.c_int64), ("row_stride", ctypes.c_int64))


class Call(ctypes.Structure):
    """``srnn_call``: a pass over time; ``stablernn_native.h`` says what each field means."""

    _fields_ = (
        ("path", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
        ("family", ctypes.c_int32),
        ("nonlinearity", ctypes.c_int32),
        ("hidden", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("steps", ctypes.c_int64),
        ("substeps", ctypes.c_int64),
        ("step_size", ctypes.c_double),
        ("recurrent", ctypes.c_void_p),
        ("linear", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("lengths", Rows),
        ("drives", Rows),
        ("first", Rows),
        ("last", Rows),
        ("states", Rows),
        ("saved", Rows * 3),
        ("outputs", Rows),
        ("arguments", Rows * 2),
        ("velocities", Rows * 2),
    )


class Gradient(ctypes.Structure):
    """``srnn_gradient``: the gradient of a matrix."""

    _fields_ = (
        ("path", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
        ("outputs", ctypes.c_int64),
        ("inputs", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("steps", ctypes.c_int64),
        ("by", Rows),
        ("x", Rows),
        ("sums", ctypes.c_void_p),
    )


class Layer(ctypes.Structure):
    """``srnn_layer``: a layer of a model."""

    _fields_ = (
        ("family", ctypes.c_int32),
        ("nonlinearity", ctypes.c_int32),
        ("step_size", ctypes.c_double),
        ("recurrent", ctypes.c_void_p),
        ("linear", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("input", ctypes.c_void_p),
        ("input_bias", ctypes.c_void_p),
    )


class Embedding(ctypes.Structure):
    """``srnn_embedding``: a linear map in front of the layers of a member."""

    _fields_ = (("weight", ctypes.c_void_p), ("bias", ctypes.c_void_p))


class Model(ctypes.Structure):
    """``srnn_model``: scaling, layers and head."""

    _fields_ = (
        ("path", ctypes.c_int32),
        ("dtype", ctypes.c_int32),
        ("features", ctypes.c_int64),
        ("samples", ctypes.c_int64),
        ("overlap", ctypes.c_int64),
        ("mean", ctypes.c_void_p),
        ("scale", ctypes.c_void_p),
        ("window", ctypes.c_int64),
        ("season", ctypes.c_int64),
        ("floor", ctypes.c_void_p),
        ("scale_floor", ctypes.c_double),
        ("clip", ctypes.c_double),
        ("has_mask", ctypes.c_int32),
        ("statistics", ctypes.c_int32),
        ("members", ctypes.c_int64),
        ("embedding", ctypes.c_int64),
        ("embeddings", ctypes.POINTER(Embedding)),
        ("hidden", ctypes.c_int64),
        ("num_layers", ctypes.c_int64),
        ("layers", ctypes.POINTER(Layer)),
        ("outputs", ctypes.c_int64),
        ("reads_last", ctypes.c_int32),
        ("every_step", ctypes.c_int32),
        ("head", ctypes.c_void_p),
        ("head_bias", ctypes.c_void_p),
        ("output_mean", ctypes.c_void_p),
        ("output_scale", ctypes.c_void_p),
        ("temperature", ctypes.c_double),
    )


class Run(ctypes.Structure):
    """``srnn_run``: sequences through a model."""

    _fields_ = (
        ("model", ctypes.POINTER(Model)),
        ("steps", ctypes.c_int64),
        ("order", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("lengths", ctypes.c_void_p),
        ("x", ctypes.c_void_p),
        ("states", ctypes.POINTER(ctypes.c_void_p)),
        ("answers", ctypes.c_void_p),
        ("probabilities", ctypes.c_void_p),
    )


_STATUSES = {
    1: "this machine does not have the path of the call",
    2: "there is no memory left for the state",
    3: "the call is incomplete or a size is negative",
}


@functools.cache
def load_kernels() -> Any:
    """Return the library, loaded.

    Raises:
        NativeError: If it was not built or is of another version than this package.
    """
    path = Path(__file__).with_name("kernels.so")
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeError(
            f"The kernels of stablernn-native cannot be loaded from {path} on {sys.platform}: {error}. "
            "Install the distribution again, on a machine with a C compiler."
        ) from error
    if loaded.srnn_abi_version() != ABI_VERSION:
        raise NativeError(
            f"The kernels in {path} have version {loaded.srnn_abi_version()} of the interface, this package needs "
            f"{ABI_VERSION}. Install stablernn-native again."
        )
    int32, int64, address = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "srnn_best_path": (int32, []),
        "srnn_has_path": (int32, [int32]),
        "srnn_path_name": (ctypes.c_char_p, [int32]),
        "srnn_packed_size": (int64, [int32, int32, int64]),
        "srnn_pack": (int32, [int32, int32, int64, address, int64, int64, address]),
        "srnn_forward": (int32, [ctypes.POINTER(Call)]),
        "srnn_backward": (int32, [ctypes.POINTER(Call)]),
        "srnn_add_gradient": (int32, [ctypes.POINTER(Gradient)]),
        "srnn_affine_size": (int64, [int32, int32, int64, int64]),
        "srnn_pack_affine": (int32, [int32, int32, int64, int64, address, address]),
        "srnn_run_model": (int32, [ctypes.POINTER(Run)]),
        "srnn_tanh": (int32, [int32, int32, int64, address, address]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
    return loaded


@functools.cache
def _paths() -> dict[str, int]:
    """Return the paths that this machine has by name, the slowest first."""
    lib, paths = load_kernels(), {}
    number = 0
    while (name := lib.srnn_path_name(number)) is not None:
        if lib.srnn_has_path(number):
            paths[name.decode()] = number
        number += 1
    return paths


def available_paths() -> list[str]:
    """Return the names of the paths that this machine has, the slowest first."""
    return list(_paths())


def path_number(name: str) -> int:
    """Return the number of a path.

    Raises:
        NativeError: If this machine does not have it.
    """
    paths = _paths()
    if name not in paths:
        raise NativeError(
            f"{PATH_VARIABLE} names the path '{name}', which this machine does not have; it has {', '.join(paths)}."
        )
    return paths[name]


def current_path() -> str:
    """Return the path that new calls take: the fastest, or the one that ``STABLERNN_NATIVE_PATH`` names.

    Raises:
        NativeError: If the variable names a path that this machine does not have.
    """
    name = os.environ.get(PATH_VARIABLE) or available_paths()[-1]
    path_number(name)
    return name


def check(status: int) -> None:
    """Refuse the status of a call that failed.

    Raises:
        NativeError: If the status is not 0.
    """
    if status:
        raise NativeError(f"The kernels of stablernn-native refused a call: {_STATUSES.get(status, status)}.")


def run_parts(kernel: Callable[[_Part], int], parts: Sequence[_Part]) -> list[int]:
    """Call a kernel for each part, every part on a thread.

    The threads are those of torch's OpenMP runtime where it is GNU's and loaded: between two products they wait
    actively, so that other threads would have to share the processors with them. Elsewhere they are started for the
    call; a pool would not survive a fork.

    Args:
        kernel: Releases the GIL, and returns a status.
        parts: What it is called with.

    Returns:
        The status of each part, in order.

    Raises:
        RuntimeError: If a thread cannot be started; those that were have ended.
    """
    statuses = [0] * len(parts)
    waiting = iter(range(len(parts)))

    def work() -> None:
        # A team may have fewer threads than parts.
        for part in waiting:
            statuses[part] = kernel(parts[part])

    team = _openmp_team() if "torch" in sys.modules else None
    if team is not None:
        _run_on_team(team, work, len(parts))
        return statuses
    started: list[threading.Thread] = []
    try:
        for _ in parts[1:]:
            thread = threading.Thread(target=work)
            thread.start()
            started.append(thread)
        work()
    finally:
        # Also where a thread could not be started: the others still write into the arrays of the call.
        for thread in started:
            thread.join()
    return statuses


def _run_on_team(team: Callable[..., None], work: Callable[[], None], count: int) -> None:
    """Call a function on each thread of a team; an interrupt, which ctypes would drop, is raised after the call."""
    errors: list[BaseException] = []

    def body(_: int | None) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    team(_TeamBody(body), None, count, 0)
    if errors:
        raise errors[0]


@functools.cache
def _openmp_team() -> Callable[..., None] | None:
    """Return ``GOMP_parallel`` of the OpenMP runtime that the process has loaded, or None without one."""
    try:
        team = ctypes.CDLL(None).GOMP_parallel
    except (AttributeError, OSError, TypeError):
        return None
    team.argtypes = [_TeamBody, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
    team.restype = None
    return team
