"""Images of many sizes and colours made alike: squares of one side, in grey or in colour."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

LUMA = (19595, 38470, 7471)  # 65,536ths of red, green and blue in grey, after ITU-R 601; as in Pillow
AT_ONCE = 256  # images, as scaling needs them as floats


@dataclass(frozen=True)
class Fit:
    """What images are made into; None leaves them as they come."""

    side: int | None = None  # of squares, in pixels; what is not square is stretched
    channels: int | None = None  # 1 is grey, 3 is colour

    def __call__(self, images: Tensor) -> Tensor:
        """Images `[N, C, H, W]`, uint8 or float."""
        if self.channels == 1 and images.shape[1] == 3:
            images = _grey(images)
        if self.side is not None and images.shape[2:] != (self.side, self.side):
            images = torch.cat([_scaled(some, self.side) for some in torch.split(images, AT_ONCE)])
        if self.channels == 3 and images.shape[1] == 1:
            images = images.repeat(1, 3, 1, 1)
        return images


AS_THEY_COME = Fit()


def channels_first(images: Tensor) -> Tensor:
    """Images `[N, H, W]`, `[N, C, H, W]` or, where that is plain, `[N, H, W, C]`, as `[N, C, H, W]`.

    Raises a ValueError where either may be meant.
    """
    if images.ndim == 3:
        return images.unsqueeze(1)
    if images.ndim != 4 or images.shape[3] not in (1, 3):
        return images
    if images.shape[1] not in (1, 3):
        return images.permute(0, 3, 1, 2)
    if images.shape[2] != images.shape[3]:
        raise ValueError("may be [N, C, H, W] or [N, H, W, C]; give square images, or [N, H, W] if they are grey")
    return images


def _scaled(images: Tensor, side: int) -> Tensor:
    scaled = F.interpolate(images.float(), (side, side), mode="bilinear", antialias=True)
    return scaled if images.is_floating_point() else scaled.round().clamp(0, 255).to(images.dtype)


def _grey(images: Tensor) -> Tensor:
    wide = images if images.is_floating_point() else images.int()
    mixed = sum(wide[:, channel] * weight for channel, weight in enumerate(LUMA))
    assert isinstance(mixed, Tensor)
    grey = mixed / 65536 if images.is_floating_point() else (mixed + 32768) >> 16
    return grey.to(images.dtype).unsqueeze(1)
