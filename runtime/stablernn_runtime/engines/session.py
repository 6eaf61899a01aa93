"""Opens ONNX Runtime sessions, and makes sure of the device that they run on.

ONNX Runtime falls back to the CPU without an error when CUDA does not load, so the device that a session reports is
compared with the requested one.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from onnxruntime.capi import onnxruntime_pybind11_state as binding  # pyright: ignore[reportAttributeAccessIssue]

from stablernn_runtime.engines.devices import INSTALL, missing_libraries, read_driver, required_cuda_version
from stablernn_runtime.errors import DeviceError, ModelLoadError, SettingsError


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

RUN_ERRORS: tuple[type[Exception], ...] = (MemoryError, *RUNTIME_ERRORS)
"""The exceptions of a run that fails, too little memory included."""

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
class GpuOptions:
    """Settings of a GPU.

    Attributes:
        device_id: Number of the GPU; None for the first one.
        memory_limit: Bytes that each graph may take on it; None for all of its memory.
        batch: Sequences and streams of the batch with which ``auto`` compares it with the CPU.
    """

    device_id: int | None = None
    memory_limit: int | None = None
    batch: int = 16

    def __str__(self) -> str:
        names = {"device_id": self.device_id, "gpu_mem_limit": self.memory_limit}
        return " and ".join(f"{name} {value}" for name, value in names.items() if value is not None)


NO_GPU_OPTIONS = GpuOptions()


@dataclass(frozen=True)
class Placement:
    """The device that a session runs on.

    Attributes:
        device: ``"cpu"`` or ``"cuda"``.
        reason: Why ``auto`` chose it, for people; empty when the device was named.
        device_id: Number of the GPU; 0 on the CPU.
        memory_limit: Bytes that a graph may take on the GPU; None for all of its memory.
        by_work: The device of each kind of work, where ``auto`` chose it by measurement, as JSON types; else empty.
        measured_ms: By candidate and kind of work, the measured milliseconds, None where no run succeeded in time.
    """

    device: Literal["cpu", "cuda"]
    reason: str = ""
    device_id: int = 0
    memory_limit: int | None = None
    by_work: Mapping[str, Any] = field(default_factory=dict)
    measured_ms: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)


def choose_device(device: Device, gpu: GpuOptions = NO_GPU_OPTIONS) -> Placement:
    """Return the device to try, from what this machine has.

    Args:
        device: ``"cpu"``, ``"cuda"``, or ``"auto"``: CUDA if nothing is known to be missing, else the CPU.
        gpu: Settings of the GPU.

    Raises:
        DeviceError: If ``cuda`` was asked for and something that it needs is missing, which the message names.
        SettingsError: As :func:`check_gpu_options`.
    """
    check_gpu_options(device, gpu)
    if device == "cpu":
        return Placement("cpu")
    missing = _missing_for_cuda()
    if missing and device == "cuda":
        raise DeviceError(f"The device 'cuda' cannot be used: {missing}. Use --device cpu or auto.")
    if missing:
        unused = f"; {gpu} has no effect" if str(gpu) else ""
        return Placement("cpu", f"auto: CPU, because {missing}{unused}")
    reason = "auto: CUDA was found" if device == "auto" else ""
    return Placement("cuda", reason, gpu.device_id or 0, gpu.memory_limit)


def check_gpu_options(device: Device, gpu: GpuOptions) -> None:
    """Check settings of a GPU against the device and against the GPUs of this machine, if it has any.

    Raises:
        SettingsError: If the GPU does not exist or has less memory than the limit, or if the device is the CPU.
    """
    if device == "cpu" and str(gpu):
        raise SettingsError(
            f"The setting {gpu} is for a GPU, but the device is 'cpu'. Leave it out, or use --device cuda or auto."
        )
    driver = read_driver()
    if driver is None or not driver.gpus:
        return
    names = ", ".join(str(each) for each in driver.gpus)
    if gpu.device_id is not None and not 0 <= gpu.device_id < len(driver.gpus):
        allowed = f"a --device-id from 0 to {len(driver.gpus) - 1}" if len(driver.gpus) > 1 else "--device-id 0"
        raise SettingsError(
            f"There is no GPU with the number {gpu.device_id}: the NVIDIA driver reports {names}. Use {allowed}."
        )
    selected = driver.gpus[gpu.device_id or 0]
    if gpu.memory_limit is not None and gpu.memory_limit > selected.memory_bytes:
        raise SettingsError(
            f"The memory limit of {gpu.memory_limit} bytes is above the {selected.memory_bytes} bytes of {selected}. "
            "Use a smaller --gpu-mem-limit, or leave it out."
        )


def open_session(
    content: bytes, label: str, placement: Placement, threads: int, *, keeps_memory: bool = False
) -> ort.InferenceSession:
    """Open a session for one checked graph, on exactly the device of ``placement``.

    Args:
        content: The bytes of the ``.onnx`` file, which :func:`check_graph` has accepted.
        label: The graph as errors name it.
        placement: From :func:`choose_device`.
        threads: Threads inside one run.
        keeps_memory: Whether the memory of a run on the CPU is kept for the next one; that of one on a GPU always is.

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
    # And it never returns memory. On a GPU, runs over long sequences take three times as long without it.
    options.enable_cpu_mem_arena = options.enable_mem_pattern = keeps_memory or placement.device == "cuda"
    options.log_severity_level = 3
    providers: list[str | tuple[str, dict[str, str]]] = [CPU]
    if placement.device == "cuda":
        _preload_cuda_libraries()
        # TF32, the default of the provider, cuts mantissas to 10 bits: the results would be far from those of the CPU.
        cuda_options = {"use_tf32": "0", "device_id": str(placement.device_id)}
        if placement.memory_limit is not None:
            # Of the arena, which every session has for itself. Doubling its size would exceed a limit too early.
            cuda_options |= {"gpu_mem_limit": str(placement.memory_limit)}
            cuda_options |= {"arena_extend_strategy": "kSameAsRequested"}
        providers = [(CUDA, cuda_options), CPU]
    try:
        session = ort.InferenceSession(content, options, providers=providers)
    except RUNTIME_ERRORS as error:
        raise ModelLoadError(
            f"{label} cannot be opened by ONNX Runtime {ort.__version__}: {_first_line(error)}"
        ) from error
    if placement.device == "cuda" and session.get_providers()[0] != CUDA:
        raise DeviceError(f"The device 'cuda' cannot be used: {_explain_fallback()}, or use --device cpu or auto.")
    return session


def _explain_fallback() -> str:
    """Return why a session came up on the CPU, and what helps, as the middle of a sentence."""
    if names := ", ".join(missing_libraries()):
        return f"ONNX Runtime could not load {names}. Install CUDA 13 and cuDNN 9 with {INSTALL}"
    # All libraries load: the driver or the GPU does not fit them.
    return (
        "ONNX Runtime fell back to the CPU although its CUDA libraries load. Its lines in the log say why; install a "
        "newer NVIDIA driver"
    )


def _missing_for_cuda() -> str:
    """Return what CUDA lacks here, as the end of a sentence; empty when nothing is known to be missing."""
    if CUDA not in ort.get_available_providers():
        return f"this build of ONNX Runtime ({ort.__version__}) has no CUDA provider; install onnxruntime-gpu"
    driver = read_driver()
    if driver is None:
        return "no NVIDIA driver was found on this machine"
    required, supported = required_cuda_version(), driver.cuda_version
    if required is not None and supported[0] < required:
        return (
            f"the NVIDIA driver supports CUDA {supported[0]}.{supported[1]}, and ONNX Runtime {ort.__version__} is "
            f"built for CUDA {required}; install a newer driver"
        )
    return driver.problem or ("" if driver.gpus else "the NVIDIA driver sees no GPU")


@functools.cache
def _preload_cuda_libraries() -> None:
    """Load CUDA and cuDNN from the folders of pip, which torch would do if it were imported."""
    # The function prints what it cannot find, and standard output is for the results of the command line.
    with contextlib.redirect_stdout(sys.stderr):
        ort.preload_dlls(directory="")


def create_run_options() -> ort.RunOptions:
    """Return options for a run that can be ended, and whose end is not logged as an error."""
    options = ort.RunOptions()
    # ONNX Runtime would log every run that is ended as an error.
    options.log_severity_level = 4
    # Captured graphs are a matter of GPUs. Python's binding looks this entry up in every run with bound buffers, and
    # without it raises and catches an exception, which takes longer than the run.
    options.add_run_config_entry("gpu_graph_id", "-1")
    return options


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0].rstrip(".") + "."


class BoundSession:
    """Runs one graph with inputs and outputs bound to its device; safe to call from several threads.

    ``InferenceSession.run`` decides for each input and output where to copy it. Here all outputs stay on the device
    until the run has ended, and are then copied to the host together.

    Attributes:
        ort_session: The session of ONNX Runtime.
        placement: Its device.

    Args:
        session: An open session.
        placement: The device that it runs on; a session on the CPU can be bound too.
    """

    def __init__(self, session: ort.InferenceSession, placement: Placement) -> None:
        self.ort_session = session
        self.placement = placement

    def run(
        self, names: Sequence[str], feeds: Mapping[str, NDArray[Any]], options: ort.RunOptions | None = None, /
    ) -> Sequence[Any]:
        """Run as :meth:`Session.run`.

        Raises:
            EngineFailure: If the run fails, or ``options`` end it.
        """
        device, device_id = self.placement.device, self.placement.device_id
        binding = self.ort_session.io_binding()
        try:
            for name, value in feeds.items():
                # ONNX Runtime copies it to where the graph reads it, for some inputs (shapes) that is the host.
                binding.bind_cpu_input(name, np.ascontiguousarray(value))
            for name in names:
                binding.bind_output(name, device, device_id)
            self.ort_session.run_with_iobinding(binding, options or create_run_options())
            outputs: Sequence[Any] = binding.copy_outputs_to_cpu()
        except RuntimeError as error:
            # Of runs with bound values, ONNX Runtime does not translate its status into an exception of its own.
            raise EngineFailure(str(error)) from error
        return outputs
