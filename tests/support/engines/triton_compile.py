"""Compile Triton's kernels for a GPU, which needs none, and print what each takes, as JSON.

Usage: python triton_compile.py < cases.json, a list of objects. Those for the engine ``triton`` have ``family``,
``precision``, ``hidden``, ``has_linear``, ``is_backward`` and ``options``, constants of the kernel; ``streamed_rows``
unless it is the largest number. Those for the scan have its constants as ``scan``, and ``dtype``. Run it in a process
of its own, without ``TRITON_INTERPRET``.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from stablernn.engines.triton import plan
from stablernn.engines.triton.kernels import backward_kernel, forward_kernel, scan_kernel

HOPPER = GPUTarget("cuda", 90, 32)
H100_SHARED = 232_448


def compile_scan(case: dict[str, Any]) -> dict[str, Any]:
    """Return the resources of the kernel of a diagonal recurrence."""
    compiled = _compile(scan_kernel, case["scan"], {"time": "i32", "batch": "i32"}, f"*{case['dtype']}", 2)
    return {"shared": compiled.metadata.shared, "spilled": spilled_bytes(compiled.asm["cubin"])}


def _compile(kernel: Any, constants: dict[str, Any], types: dict[str, str], pointer: str, warps: int) -> Any:
    """Compile a kernel whose arguments are pointers, but for those that have another type or are constants."""
    types = types | dict.fromkeys(constants, "constexpr")
    signature = {name: types.get(name, pointer) for name in kernel.arg_names}
    source = ASTSource(
        kernel,
        signature,
        {(index,): constants[name] for index, name in enumerate(kernel.arg_names) if name in constants},
        # As torch allocates them.
        {(index,): [["tt.divisibility", 16]] for index, kind in enumerate(signature.values()) if kind.startswith("*")},
    )
    return triton.compile(source, target=HOPPER, options={"num_warps": warps, "num_stages": 3})


def compile_case(case: dict[str, Any]) -> dict[str, Any]:
    """Return the resources of a kernel and the shared memory that its plan names."""
    if "scan" in case:
        return compile_scan(case)
    is_backward, precision = case["is_backward"], case["precision"]
    sizes = plan.make_plan(
        precision,
        case["family"],
        case["hidden"],
        case["has_linear"],
        is_backward=is_backward,
        limit=H100_SHARED,
        streamed_rows=case.get("streamed_rows", plan.STREAMED_ROWS),
    )
    assert sizes is not None
    constants = {
        "FAMILY": case["family"],
        "NONLINEARITY": "tanh",
        "SUBSTEPS": 1,
        "HAS_LINEAR": case["has_linear"],
        "IS_TIMED": False,
        "HAS_LENGTHS": False,
        "PRECISION": precision,
        "HIDDEN": case["hidden"],
        "BLOCK_B": sizes.rows,
        "BLOCK_N": sizes.columns,
        "BLOCK_K": sizes.depth,
        "STAGES": sizes.stages,
        **({"HAS_OUTPUTS": True} if is_backward else {"HAS_BIAS": False}),
        **({} if is_backward else {"KEEPS_STATES": True, "KEEPS_ACTIVATIONS": True}),
        **case.get("options", {}),
    }
    kernel = backward_kernel if is_backward else forward_kernel
    types = {"step_size": "fp32", "time": "i32", "batch": "i32", "members": "i32", "lengths": "*i32"}
    if precision == "bf16":
        types |= {"recurrent": "*bf16", "linear": "*bf16"}
    compiled = _compile(kernel, constants, types, "*fp32", sizes.warps)
    return {
        "shared": compiled.metadata.shared,
        "planned": sizes.shared_bytes,
        "tensor_cores": compiled.asm["ptx"].count("mma.sync"),
        "spilled": spilled_bytes(compiled.asm["cubin"]),
    }


def spilled_bytes(cubin: bytes) -> int:
    """Return the bytes of the stack of a kernel, which holds what its registers do not."""
    program = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [str(program), "-res-usage", file.name]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    stack = re.search(r"STACK:(\d+)", output)
    assert stack is not None, output
    return int(stack[1])


if __name__ == "__main__":
    print(json.dumps([compile_case(case) for case in json.load(sys.stdin)]))
