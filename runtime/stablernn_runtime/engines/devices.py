"""Devices of this machine that graphs run on: its NVIDIA driver and GPUs, its CUDA libraries, and its CPUs.

The driver's own library is asked, which needs neither CUDA libraries nor a context on a GPU. A session that fails for
lack of a driver would log errors instead. Nor are they needed to find out which CUDA libraries are missing: the file of
ONNX Runtime's provider names those that it links to, and each is loaded from the folder of pip, or from those of the
system.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import onnxruntime as ort

_SUCCESS, _NO_DEVICE = 0, 100
# Of the enumeration CUdevice_attribute.
_COMPUTE_CAPABILITY_MAJOR, _COMPUTE_CAPABILITY_MINOR = 75, 76
INSTALL = "pip install -e '.[cuda]' in the checkout"
"""The command that installs them."""
_DRIVER = "libcuda.so"
_LOADED_LATER = ("libcudnn.so.9",)
"""Libraries that the provider opens when the first graph needs them, and so does not link to."""
_LOAD, _DYNAMIC = 1, 2
_NEEDED, _STRING_TABLE, _END = 1, 5, 0


@dataclass(frozen=True)
class Gpu:
    """A GPU as the driver describes it.

    Attributes:
        device_id: Its number, from 0; CUDA orders them, and ``CUDA_VISIBLE_DEVICES`` hides some.
        name: Its name, such as ``NVIDIA L4``.
        memory_bytes: All of its memory, free or not.
        compute_capability: Generation of its processors, such as ``8.9``.
    """

    device_id: int
    name: str
    memory_bytes: int
    compute_capability: str

    def __str__(self) -> str:
        return f"GPU {self.device_id} ({self.name}, {self.memory_bytes / 2**30:.0f} GiB)"


@dataclass(frozen=True)
class Driver:
    """The NVIDIA driver of this machine.

    Attributes:
        cuda_version: The newest CUDA that it supports, as major and minor number.
        gpus: The GPUs that it reports.
        problem: Why it reports none although it is installed, as the end of a sentence; else empty.
    """

    cuda_version: tuple[int, int]
    gpus: tuple[Gpu, ...] = ()
    problem: str = ""


@functools.cache
def read_driver() -> Driver | None:
    """Return the NVIDIA driver and its GPUs; None where no driver is installed."""
    try:
        library = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return None
    number = ctypes.c_int(0)
    library.cuDriverGetVersion(ctypes.byref(number))
    # 12040 is CUDA 12.4.
    version = number.value // 1000, number.value % 1000 // 10
    code = library.cuInit(0)
    if code == _SUCCESS:
        count = ctypes.c_int(0)
        code = library.cuDeviceGetCount(ctypes.byref(count))
        if code == _SUCCESS:
            return Driver(version, tuple(_read_gpu(library, index) for index in range(count.value)))
    problem = "" if code == _NO_DEVICE else f"the NVIDIA driver does not work: {_describe(library, code)}"
    return Driver(version, problem=problem)


def count_gpus() -> int | None:
    """Return the number of GPUs that the driver reports; None without a driver."""
    driver = read_driver()
    return None if driver is None else len(driver.gpus)


def _read_gpu(library: ctypes.CDLL, index: int) -> Gpu:
    device, name = ctypes.c_int(0), ctypes.create_string_buffer(256)
    memory, major, minor = ctypes.c_size_t(0), ctypes.c_int(0), ctypes.c_int(0)
    library.cuDeviceGet(ctypes.byref(device), index)
    library.cuDeviceGetName(name, len(name), device)
    library.cuDeviceTotalMem_v2(ctypes.byref(memory), device)
    library.cuDeviceGetAttribute(ctypes.byref(major), _COMPUTE_CAPABILITY_MAJOR, device)
    library.cuDeviceGetAttribute(ctypes.byref(minor), _COMPUTE_CAPABILITY_MINOR, device)
    return Gpu(index, name.value.decode(errors="replace"), memory.value, f"{major.value}.{minor.value}")


def _describe(library: ctypes.CDLL, code: int) -> str:
    """Return the driver's own text for an error code, with the code."""
    text = ctypes.c_char_p()
    library.cuGetErrorString(code, ctypes.byref(text))
    return f"{(text.value or b'unknown error').decode(errors='replace')} (code {code})"


@functools.cache
def missing_libraries() -> tuple[str, ...]:
    """Return the names of the CUDA libraries that the provider needs and that cannot be loaded, in its order.

    The result is empty where this build of ONNX Runtime has no CUDA provider, and on systems other than Linux.
    """
    names = _provider_libraries()
    if not names:
        return ()
    # pip could not install the driver.
    missing = [name for name in (*names, *_LOADED_LATER) if not name.startswith(_DRIVER)]
    # In rounds: some need each other (cublas needs cublasLt), and load once the other one is loaded.
    while failed := [name for name in missing if not _is_loadable(name)]:
        if failed == missing:
            break
        missing = failed
    return tuple(failed)


@functools.cache
def required_cuda_version() -> int | None:
    """Return the major version of CUDA that the provider is built for; None where its libraries do not tell."""
    for name in _provider_libraries():
        # Such as libcublas.so.13. The version of cuFFT, for one, is not that of CUDA.
        stem, _, version = name.partition(".so.")
        if stem in ("libcudart", "libcublas") and version.isdecimal():
            return int(version)
    return None


def _provider_libraries() -> list[str]:
    """Return the CUDA libraries that the provider links to, in its order; none where there is no such file."""
    provider = Path(ort.__file__).parent / "capi" / "libonnxruntime_providers_cuda.so"
    if sys.platform != "linux" or not provider.is_file():
        return []
    return [name for name in needed_libraries(provider) if name.startswith("libcu")]


def needed_libraries(path: Path) -> list[str]:
    """Return the libraries that a 64-bit little-endian ELF file links to (DT_NEEDED), in its order.

    Raises:
        ValueError: If it is another file.
    """
    with open(path, "rb") as file:
        header = file.read(64)
        if len(header) < 64 or header[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"'{path}' is not a 64-bit little-endian ELF file.")
        # Of the program headers: e_phoff, e_phentsize and e_phnum of the ELF header.
        offset, size, count = *struct.unpack_from("<Q", header, 32), *struct.unpack_from("<HH", header, 54)
        file.seek(offset)
        table = file.read(size * count)
        # (type, flags, offset in the file, address, physical address, size in the file, ...)
        segments = [struct.unpack_from("<IIQQQQ", table, size * index) for index in range(count)]
        dynamic = next((segment for segment in segments if segment[0] == _DYNAMIC), None)
        if dynamic is None:
            return []
        file.seek(dynamic[2])
        entries = list(_dynamic_entries(file.read(dynamic[5])))
        # The string table is given by its address in memory; its segment tells where in the file that is.
        address = next(value for tag, value in entries if tag == _STRING_TABLE)
        strings = next(
            address - segment[3] + segment[2]
            for segment in segments
            if segment[0] == _LOAD and segment[3] <= address < segment[3] + segment[5]
        )
        names = []
        for tag, value in entries:
            if tag == _NEEDED:
                file.seek(strings + value)
                names.append(file.read(256).split(b"\0", 1)[0].decode("ascii"))
        return names


def _dynamic_entries(data: bytes) -> Iterator[tuple[int, int]]:
    for tag, value in struct.iter_unpack("<qQ", data[: len(data) // 16 * 16]):
        if tag == _END:
            return
        yield tag, value


def _is_loadable(name: str) -> bool:
    folder = Path(ort.__file__).parents[1] / "nvidia"
    for path in (*sorted(folder.glob(f"*/lib/{name}")), name):
        try:
            ctypes.CDLL(str(path))
        except OSError:
            # Not there, or one that it needs is not.
            continue
        return True
    return False


def available_cpus(cgroup_root: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many CPUs this process may use at once, at least 1.

    Args:
        cgroup_root: Mount point of the control groups; another folder in tests.
    """
    # Systems other than Linux do not tell the affinity.
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota(cgroup_root)
    return affinity if quota is None else max(1, min(affinity, math.ceil(quota)))


def _quota(root: Path) -> float | None:
    """Return the quota of cgroup v2 (``cpu.max``) or v1 (``cpu.cfs_*``) in CPUs; None when there is none."""
    try:
        if (root / "cpu.max").exists():
            quota, period = (root / "cpu.max").read_text().split()
            return None if quota == "max" else int(quota) / int(period)
        quota = (root / "cpu" / "cpu.cfs_quota_us").read_text()
        period = (root / "cpu" / "cpu.cfs_period_us").read_text()
        # Version 1 writes -1 for no quota.
        return int(quota) / int(period) if int(quota) > 0 else None
    except (OSError, ValueError):
        # No control groups here, or files of another form.
        return None
