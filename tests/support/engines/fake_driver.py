"""A library with the functions of the NVIDIA driver that are called here, for machines without a GPU."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

SOURCE = """
#include <stddef.h>
#include <string.h>
static const char *names[] = {NAMES};
static const size_t bytes[] = {BYTES};
int cuDriverGetVersion(int *version) { *version = VERSION; return 0; }
int cuInit(unsigned flags) { return CODE; }
int cuDeviceGetCount(int *count) { *count = sizeof(bytes) / sizeof(*bytes) - 1; return 0; }
int cuDeviceGet(int *device, int index) { *device = index; return 0; }
int cuDeviceGetName(char *name, int size, int device) { strncpy(name, names[device], size); return 0; }
int cuDeviceTotalMem_v2(size_t *total, int device) { *total = bytes[device]; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) { *value = attribute == 75 ? 8 : 9; return 0; }
int cuGetErrorString(int code, const char **text) { *text = "system driver mismatch"; return 0; }
"""
"""The numbers stand for values that a compilation replaces; each list ends with an entry that is not counted."""


def write_driver(
    folder: Path, gpus: Sequence[tuple[str, int]] = (), version: int = 13000, code: int = 0
) -> dict[str, str]:
    """Compile a driver, and return the variables with which a process finds it.

    Args:
        folder: Folder of the library.
        gpus: Name and bytes of each GPU.
        version: The CUDA version that it supports.
        code: The result of its initialization.
    """
    if shutil.which("cc") is None:
        pytest.skip("there is no compiler on this machine")
    folder.mkdir(parents=True, exist_ok=True)
    values = {
        "NAMES": ", ".join([*(f'"{name}"' for name, _ in gpus), "0"]),
        "BYTES": ", ".join([*(str(size) for _, size in gpus), "0"]),
        "VERSION": str(version),
        "CODE": str(code),
    }
    source = SOURCE
    for name, value in values.items():
        source = source.replace(name, value)
    command = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(folder / "libcuda.so.1")]
    subprocess.run(command, input=source, text=True, check=True)
    return {"LD_LIBRARY_PATH": str(folder)}
