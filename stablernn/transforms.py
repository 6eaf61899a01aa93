"""Detection of programs whose operations torch transforms or records."""

from __future__ import annotations

import torch
from torch._C._functorch import peek_interpreter_stack
from torch.autograd import forward_ad


def is_transformed() -> bool:
    """Return whether operations are transformed or recorded, so that values must not decide which ones run.

    True within ``torch.func``, forward-mode differentiation, ``torch.compile`` and ``torch.jit.trace``.
    """
    return (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
    )
