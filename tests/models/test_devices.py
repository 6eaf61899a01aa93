"""Tensors and parameters on two devices are refused with both names; ``meta`` is a device that every machine has."""

from __future__ import annotations

import re

import pytest
import torch

import stablernn as srn


def test_an_input_on_another_device() -> None:
    message = "input is on meta, the parameters are on cpu; move one with .to()."
    x = torch.zeros(2, 5, 3, device="meta")
    for model in (srn.StableRNN("gru", 3, 4), srn.Classifier("gru", 3, 2, hidden_size=4)):
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            model(x)


def test_parameters_on_another_device() -> None:
    message = "input is on cpu, the parameters are on meta; move one with .to()."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        srn.StableRNN("lem", 3, 4).to("meta")(torch.zeros(2, 5, 3))


def test_a_state_on_another_device() -> None:
    rnn, x = srn.StableRNN("lstm", 3, 4), torch.zeros(2, 5, 3)
    message = "The state is on meta, the parameters are on cpu; move one with .to()."
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        rnn(x, (torch.zeros(1, 2, 4), torch.zeros(1, 2, 4, device="meta")))
