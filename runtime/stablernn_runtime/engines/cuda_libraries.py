"""The CUDA libraries that ONNX Runtime loads: what its provider names, and which of them this machine lacks.

Looked up without a GPU and without a driver: the provider's file names what it links to, and each of these is loaded
from where pip puts it, or from where the system has it.
"""

from __future__ import annotations

import ctypes
import functools
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import onnxruntime as ort

INSTALL = "pip install 'stablernn[cuda]'"
"""The command that brings what is missing."""
_DRIVER = "libcuda.so"
_LOADED_LATER = ("libcudnn.so.9",)
"""Opened by the provider when the first graph needs it, and therefore not among what it links to."""
_LOAD, _DYNAMIC = 1, 2
_NEEDED, _STRING_TABLE, _END = 1, 5, 0


@functools.cache
def missing_libraries() -> tuple[str, ...]:
    """Returns the names of the CUDA libraries that the provider needs and that cannot be loaded, in its order.

    Empty where this build of ONNX Runtime has no CUDA provider. Systems other than Linux are not looked at.
    """
    provider = Path(ort.__file__).parent / "capi" / "libonnxruntime_providers_cuda.so"
    if sys.platform != "linux" or not provider.is_file():
        return ()
    names = [name for name in needed_libraries(provider) if name.startswith("libcu")]
    # The driver is not a library that pip could bring.
    wanted = [name for name in (*names, *_LOADED_LATER) if not name.startswith(_DRIVER)]
    # Some need each other (cublas needs cublasLt) and are found once that is loaded, hence in rounds.
    missing = wanted
    while failed := [name for name in missing if not _is_loadable(name)]:
        if failed == missing:
            break
        missing = failed
    return tuple(failed)


def needed_libraries(path: Path) -> list[str]:
    """Returns the libraries that a 64-bit little-endian ELF file links to (DT_NEEDED), in its order.

    Raises:
        ValueError: If it is no such file.
    """
    with open(path, "rb") as file:
        header = file.read(64)
        if len(header) < 64 or header[:6] != b"\x7fELF\x02\x01":
            raise ValueError(f"'{path}' is not a 64-bit little-endian ELF file.")
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
            continue
        return True
    return False
