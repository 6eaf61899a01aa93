"""A few samples at a time: the recurrent layers advance once a patch, which shortens a sequence by its stride."""

from __future__ import annotations

import torch
from torch import Tensor

from stablernn.errors import ConfigError
from stablernn.nn.preprocessing._scaling import Scaling

States = tuple[Tensor, ...]


class Patches:
    """The last ``size`` scaled samples side by side, every ``stride`` samples. Causal: a patch ends with its last.

    Samples before the first are 0. A sequence of another length than whole patches is filled up with missing samples:
    behind its end or, ``end_aligned``, before its beginning, so that the last patch ends with the last sample.

    Args:
        scaling: What scales the samples.
        size: Samples that the layers see at once, 1 or more.
        stride: Samples after which they see the next patch, from 1 to ``size``.
        end_aligned: Whether the last patch of a sequence is the whole one, as a forecast from its end needs it.

    Raises:
        ConfigError: If there is no such patch.
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
        self._kept = size - stride

    @property
    def output_size(self) -> int:
        """Channels that the first layer sees."""
        return self.size * self.scaling.output_size + self.scaling.extras_per_feature * self.scaling.size

    def state_roles(self) -> list[tuple[str, int]]:
        """Role and length of each state tensor; all start as zeros."""
        kept = [("samples before the patch", self._kept * self.scaling.output_size)] if self._kept else []
        return [*self.scaling.state_roles(), *kept]

    def split(self, state: States) -> tuple[States, States]:
        """The scaling's state, and that of the patches themselves."""
        count = len(self.scaling.state_roles())
        return state[:count], state[count:]

    def step(self, x: Tensor, state: States) -> tuple[Tensor, States]:
        """Channels for the first layer from the raw samples of one patch ``(batch, stride, F)``, and the next state."""
        scaling_state, kept = self.split(state)
        scaled, extras, scaling_state = self.scaling.patch(x, scaling_state)
        if kept:
            scaled = torch.cat([kept[0].reshape(-1, self._kept, self.scaling.output_size), scaled], dim=1)
            kept = (scaled[:, self.stride :].flatten(1),)
        features = scaled.flatten(1)
        return features if extras is None else torch.cat([features, extras], dim=-1), (*scaling_state, *kept)

    def sequence(self, x: Tensor, valid: Tensor | None, state: States) -> tuple[Tensor, Tensor | None, States]:
        """:meth:`step` over whole sequences.

        Args:
            x: ``(batch, time, F)``, raw units.
            valid: ``(batch, time)``, false behind each sequence's end; None when every sample counts.
            state: The state to go on from.

        Returns:
            Channels of each patch, ``(batch, patches, output_size)``; the number of patches of each sequence,
            ``(batch,)``, or None when all count; the state after the last of them.
        """
        if valid is not None:
            x = torch.where(valid[..., None], x, torch.nan)
        x = self._whole(x, valid, torch.nan)
        groups = None if valid is None else -(-valid.sum(dim=1) // self.stride)
        scaling_state, kept = self.split(state)
        scaled, extras, scaling_state = self.scaling.patches(x, scaling_state, self.stride, groups)
        count = x.shape[1] // self.stride
        if kept:
            scaled = torch.cat([kept[0].reshape(-1, self._kept, self.scaling.output_size), scaled], dim=1)
            done = torch.full((len(x),), count, device=x.device) if groups is None else groups
            last = (done * self.stride)[:, None] + torch.arange(self._kept, device=x.device)
            kept = (scaled[torch.arange(len(x), device=x.device)[:, None], last].flatten(1),)
        features = scaled.unfold(1, self.size, self.stride).transpose(2, 3).flatten(2)
        if extras is not None:
            features = torch.cat([features, extras], dim=-1)
        return features, groups, (*scaling_state, *kept)

    def time(self, dt: Tensor, valid: Tensor | None) -> Tensor:
        """The time of each patch ``(batch, patches)``: the mean of its samples' ``(batch, time)``, 1 where none is."""
        dt = self._whole(dt[..., None], valid, 1.0)[..., 0]
        return dt.reshape(len(dt), -1, self.stride).mean(dim=2)

    def _whole(self, values: Tensor, valid: Tensor | None, absent: float) -> Tensor:
        """``(batch, time, channels)`` as whole patches, filled up with ``absent``."""
        time = values.shape[1]
        values = torch.nn.functional.pad(values, (0, 0, 0, -time % self.stride), value=absent)
        if not self.end_aligned:
            return values
        lengths = torch.full((len(values),), time, device=values.device) if valid is None else valid.sum(dim=1)
        place = torch.arange(values.shape[1], device=values.device) - (-lengths % self.stride)[:, None]
        moved = values.gather(1, place.clamp_min(0)[..., None].expand_as(values))
        return torch.where(place[..., None] >= 0, moved, absent)
