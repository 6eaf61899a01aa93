"""Check an installed wheel: every path of this machine computes tanh. cibuildwheel runs this."""

from __future__ import annotations

import sys

import numpy as np

from stablernn_native import available_paths, bindings

x = np.linspace(-9, 9, 1001, dtype=np.float32)
for path in available_paths():
    out = np.empty_like(x)
    lib, number = bindings.load_kernels(), bindings.path_number(path)
    bindings.check(lib.srnn_tanh(number, bindings.FLOAT32, x.size, x.ctypes.data, out.ctypes.data))
    error = float(np.abs(out - np.tanh(x.astype(np.float64))).max())
    print(path, error)
    if not error < 3e-7:
        sys.exit(f"The path {path} is off by {error}.")
