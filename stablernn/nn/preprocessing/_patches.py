"""Patches of samples: the recurrent layers advance once a patch, which shortens a sequence by its stride."""

from __future__ import annotations

import torch
from torch import Tensor

from stablernn.errors import ConfigError
from stablernn.nn.preprocessing._scaling import Scaling
from stablernn.transforms import is_transformed

States = tuple[Tensor, ...]


class Patches:
    """The last ``size`` scaled samples, concatenated every ``stride`` samples: causal, no patch reads later samples.

    Samples before the first are 0. A sequence whose length is not a multiple of the stride is padded with missing
    samples: after its end or, ``end_aligned``, before its beginning, so that the last patch ends with the last sample.

    Args:
        scaling: The scaling of the samples.
        size: Samples that the layers see at once, 1 or more.
        stride: Samples after which they see the next patch, from 1 to ``size``.
        end_aligned: Whether the last patch of a sequence is the whole one, as a forecast from its end needs it.

    Raises:
        ConfigError: If ``size`` or ``stride`` is out of range.
    """

    def __init__(self, scaling: Scaling, size: int, stride: int, *, end_aligned: bool = False) -> None:
        if size < 1 or not 1 <= stride <= size:
            raise ConfigError(
                f"A patch has 1 sample or more and comes every 1 to patch_size samples, so that none is skipped; got "
                f"patch_size={size} and patch_stride={stride}."
            )
        self.scaling = scaling
        self.size = size
        self.stride = stride
        self.end_aligned = end_aligned and stride > 1
        # Samples that a patch shares with the next.
        self._overlap = size - stride

    @property
    def output_size(self) -> int:
        """Number of input channels of the first layer."""
        return self.size * self.scaling.output_size + self.scaling.extras_per_feature * self.scaling.size

    def state_roles(self) -> list[tuple[str, int]]:
        """Return role and length of each state tensor; all start as zeros."""
        overlap_size = self._overlap * self.scaling.output_size
        overlap = [("samples before the patch", overlap_size)] if self._overlap else []
        return [*self.scaling.state_roles(), *overlap]

    def split(self, state: States) -> tuple[States, States]:
        """Split a state into the scaling's and the overlap of the patches, an empty tuple if there is none."""
        count = len(self.scaling.state_roles())
        return state[:count], state[count:]

    def step(self, x: Tensor, state: States) -> tuple[Tensor, States]:
        """Return the first layer's channels from a patch of raw samples ``(batch, stride, F)``, and the next state."""
        scaling_state, overlap = self.split(state)
        scaled, extras, scaling_state = self.scaling.patch(x, scaling_state)
        if overlap:
            # (batch, size, channels)
            scaled = torch.cat([overlap[0].reshape(-1, self._overlap, self.scaling.output_size), scaled], dim=1)
            overlap = (scaled[:, self.stride :].flatten(1),)
        features = scaled.flatten(1)
        return features if extras is None else torch.cat([features, extras], dim=-1), (*scaling_state, *overlap)

    def sequence(self, x: Tensor, valid: Tensor | None, state: States) -> tuple[Tensor, Tensor | None, States]:
        """Run :meth:`step` over whole sequences.

        Args:
            x: ``(batch, time, F)``, raw units.
            valid: ``(batch, time)``, false after each sequence's end; None if every sample counts.
            state: The state to continue from.

        Returns:
            Channels of each patch, ``(batch, patches, output_size)``; the number of patches of each sequence,
            ``(batch,)``, or None if all count; the state after the last of them.
        """
        if valid is not None:
            # Padding counts as missing.
            x = torch.where(valid[..., None], x, torch.nan)
        x = self._pad_to_patches(x, valid, torch.nan)
        patch_counts = None if valid is None else -(-valid.sum(dim=1) // self.stride)
        scaling_state, overlap = self.split(state)
        scaled, extras, scaling_state = self.scaling.patches(x, scaling_state, self.stride, patch_counts)
        count = x.shape[1] // self.stride
        if overlap:
            scaled = torch.cat([overlap[0].reshape(-1, self._overlap, self.scaling.output_size), scaled], dim=1)
            counts = torch.full((len(x),), count, device=x.device) if patch_counts is None else patch_counts
            # The last samples of the last patch: the prepended overlap shifts indices by its own length.
            last = (counts * self.stride)[:, None] + torch.arange(self._overlap, device=x.device)
            overlap = (scaled[torch.arange(len(x), device=x.device)[:, None], last].flatten(1),)
        # (batch, patches, channels, size) to (batch, patches, size * channels), as step flattens them.
        features = scaled.unfold(1, self.size, self.stride).transpose(2, 3).flatten(2)
        if extras is not None:
            features = torch.cat([features, extras], dim=-1)
        return features, patch_counts, (*scaling_state, *overlap)

    def time(self, dt: Tensor, valid: Tensor | None) -> Tensor:
        """Return the time of each patch ``(batch, patches)``: the mean of its samples', 1 for padding."""
        dt = self._pad_to_patches(dt[..., None], valid, 1.0)[..., 0]
        return dt.reshape(len(dt), -1, self.stride).mean(dim=2)

    @staticmethod
    def mean_time(dt: Tensor) -> Tensor:
        """Return the mean of the times of a patch's samples, ``(batch, 1)``, as :meth:`time` takes it.

        Args:
            dt: ``(batch, stride)``.
        """
        # Summed one by one: ReduceMean of ONNX Runtime has other bits for one row than for the same row in a batch.
        total, *others = dt.unbind(1)
        for time in others:
            total = total + time
        return (total / dt.shape[1])[:, None]

    def _pad_to_patches(self, values: Tensor, valid: Tensor | None, fill: float) -> Tensor:
        """Pad ``(batch, time, channels)`` with ``fill`` to whole patches, at the end or, end-aligned, at the start."""
        time = values.shape[1]
        values = torch.nn.functional.pad(values, (0, 0, 0, -time % self.stride), value=fill)
        if not self.end_aligned:
            return values
        lengths = torch.full((len(values),), time, device=values.device) if valid is None else valid.sum(dim=1)
        # On a GPU, to look for lengths that need a shift would take longer than to shift.
        if not (values.is_cuda or is_transformed() or bool((lengths % self.stride).any())):
            return values
        # Each sequence is shifted to the right by the samples that its first patch lacks; (batch, padded time).
        source = torch.arange(values.shape[1], device=values.device) - (-lengths % self.stride)[:, None]
        shifted = values.gather(1, source.clamp_min(0)[..., None].expand_as(values))
        return torch.where(source[..., None] >= 0, shifted, fill)
