"""The GPUs that the NVIDIA driver reports, and the CUDA version that it supports.

The driver's own library is asked, which needs neither CUDA libraries nor a context on a GPU. A session that fails for
lack of a driver would log errors instead.
"""

from __future__ import annotations

import ctypes
import functools
import sys
from dataclasses import dataclass

_SUCCESS, _NO_DEVICE = 0, 100
# Of the enumeration CUdevice_attribute.
_COMPUTE_CAPABILITY_MAJOR, _COMPUTE_CAPABILITY_MINOR = 75, 76


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
