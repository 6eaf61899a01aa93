"""The CUDA libraries that ONNX Runtime loads, and those of them that this machine lacks.

Neither a GPU nor a driver is needed to find out: the file of the provider names the libraries that it links to, and
each is loaded from the folder of pip, or from those of the system.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import onnxruntime as ort

INSTALL = "pip install -e '.[cuda]' in the checkout"
"""The command that installs them."""
_DRIVER = "libcuda.so"
_LOADED_LATER = ("libcudnn.so.9",)
"""Libraries that the provider opens when the first graph needs them, and so does not link to."""
_LOAD, _DYNAMIC = 1, 2
_NEEDED, _STRING_TABLE, _END = 1, 5, 0


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
