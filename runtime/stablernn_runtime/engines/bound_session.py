"""A session of ONNX Runtime whose inputs and outputs are bound to a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from stablernn_runtime.engines.session import EngineFailure, Placement, create_run_options

Array = NDArray[Any]


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
        self, names: Sequence[str], feeds: Mapping[str, Array], options: ort.RunOptions | None = None, /
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
