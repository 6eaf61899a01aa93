"""Opens ONNX Runtime sessions, and makes sure of the device that they run on.

ONNX Runtime falls back to the CPU without an error when CUDA does not load, so the device that a session reports is
compared with the requested one.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import onnxruntime as ort
from numpy.typing import NDArray

# A compiled module, which type checkers cannot look into.
from onnxruntime.capi import onnxruntime_pybind11_state as binding  # pyright: ignore[reportAttributeAccessIssue]

from stablernn_runtime.engines.cuda_libraries import INSTALL, missing_libraries
from stablernn_runtime.errors import DeviceError, ModelLoadError


class EngineFailure(RuntimeError):
    """A run that failed in an engine other than ONNX Runtime or with bound buffers, or was cancelled early."""


# The exceptions of ONNX Runtime's binding share no base below `Exception`.
RUNTIME_ERRORS: tuple[type[Exception], ...] = (
    EngineFailure,
    binding.EPFail,
    binding.Fail,
    binding.InvalidArgument,
    binding.InvalidGraph,
    binding.InvalidProtobuf,
    binding.NotImplemented,
    binding.RuntimeException,
)

Device = Literal["auto", "cpu", "cuda"]
CUDA = "CUDAExecutionProvider"
CPU = "CPUExecutionProvider"


class Session(Protocol):
    """An object that runs one graph, such as ``onnxruntime.InferenceSession``. Safe to call from several threads."""

    def run(
        self,
        output_names: Sequence[str],
        input_feed: Mapping[str, NDArray[Any]],
        run_options: ort.RunOptions | None = None,
        /,
    ) -> Sequence[Any]:
        """Return the outputs of these names, in their order, as arrays.

        Raises:
            MemoryError: If there is not enough memory.
            RUNTIME_ERRORS: If the run fails, or ``run_options`` end it.
        """
        ...


@dataclass(frozen=True)
class Placement:
    """The device that a session runs on.

    Attributes:
        device: ``"cpu"`` or ``"cuda"``.
        reason: Why ``auto`` chose it, for people; empty when the device was named.
    """

    device: Literal["cpu", "cuda"]
    reason: str = ""


def choose_device(device: Device) -> Placement:
    """Return the device to try, from what this machine has.

    Args:
        device: ``"cpu"``, ``"cuda"``, or ``"auto"``: CUDA if nothing is known to be missing, else the CPU.

    Raises:
        DeviceError: If ``cuda`` was asked for and something that it needs is missing, which the message names.
    """
    if device == "cpu":
        return Placement("cpu")
    missing = _missing_for_cuda()
    if device == "cuda":
        if missing:
            raise DeviceError(f"The device 'cuda' cannot be used: {missing}. Use --device cpu or auto.")
        return Placement("cuda")
    if missing:
        return Placement("cpu", f"auto: CPU, because {missing}")
    return Placement("cuda", "auto: CUDA was found")


def open_session(content: bytes, label: str, placement: Placement, threads: int) -> ort.InferenceSession:
    """Open a session for one checked graph, on exactly the device of ``placement``.

    Args:
        content: The bytes of the ``.onnx`` file, which :func:`check_graph` has accepted.
        label: The graph as errors name it.
        placement: From :func:`choose_device`.
        threads: Threads inside one run.

    Raises:
        ModelLoadError: If ONNX Runtime refuses the graph.
        DeviceError: If the session came up on another device than asked.
    """
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
    # Threads that spin while they wait take CPU time from other requests.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    # Otherwise a file whose bytes 4 to 8 are ORTM is read as a flatbuffer, which `check_graph` cannot check.
    options.add_session_config_entry("session.load_model_format", "ONNX")
    # Every allocation of the arena takes the same lock, so that two runs at a time are slower than one after the other.
    # And it never returns memory.
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    options.log_severity_level = 3
    providers: list[str | tuple[str, dict[str, str]]] = [CPU]
    if placement.device == "cuda":
        _preload_cuda_libraries()
        # TF32, the default of the provider, cuts mantissas to 10 bits: the results would be far from those of the CPU.
        providers = [(CUDA, {"use_tf32": "0"}), CPU]
    try:
        session = ort.InferenceSession(content, options, providers=providers)
    except RUNTIME_ERRORS as error:
        raise ModelLoadError(
            f"{label} cannot be opened by ONNX Runtime {ort.__version__}: {_first_line(error)}"
        ) from error
    if placement.device == "cuda" and session.get_providers()[0] != CUDA:
        missing = ", ".join(missing_libraries()) or "its CUDA libraries"
        raise DeviceError(
            f"The device 'cuda' cannot be used: ONNX Runtime could not load {missing}. Install CUDA 13 and cuDNN 9 "
            f"with {INSTALL}, or use --device cpu or auto."
        )
    return session


def _missing_for_cuda() -> str:
    """Return what CUDA lacks here, as the end of a sentence; empty when nothing is known to be missing."""
    if CUDA not in ort.get_available_providers():
        return f"this build of ONNX Runtime ({ort.__version__}) has no CUDA provider; install onnxruntime-gpu"
    count = cuda_devices()
    if count is None:
        return "no NVIDIA driver was found on this machine"
    return "" if count else "the NVIDIA driver sees no GPU"


@functools.cache
def cuda_devices() -> int | None:
    """Return the number of GPUs that the driver reports; None without a driver.

    To ask the driver first avoids the log messages of a session that fails.
    """
    try:
        driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


@functools.cache
def _preload_cuda_libraries() -> None:
    """Load CUDA and cuDNN from the folders of pip, which torch would do if it were imported."""
    # The function prints what it cannot find, and standard output is for the results of the command line.
    with contextlib.redirect_stdout(sys.stderr):
        ort.preload_dlls(directory="")


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".") + "."
