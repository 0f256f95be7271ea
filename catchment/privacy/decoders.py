"""From features back to images: decoders that a curious server fits on images of its own."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from catchment.randomness import seeded_globals, torch_generator

CHUNK = 50  # images that are worked on at once
RIDGE = 1e-4  # of the mean square of a patch's numbers
WIDTHS = (32, 512)  # fewest and most channels between convolutions
RATE = 2e-3  # of their training


def known_features(extractor: nn.Module, images: Tensor, sent: Tensor) -> Tensor:
    """Features of images, in evaluation or training mode: whichever has channels more like those that were sent."""
    device = next((p.device for p in extractor.parameters()), images.device)
    found = []
    with torch.no_grad(), seeded_globals(0):
        for mode in (False, True):
            extractor.train(mode)
            parts = [extractor(part.to(device)).cpu() for part in images.chunk(max(1, len(images) // CHUNK))]
            found.append(torch.cat(parts))
    return min(found, key=lambda features: _distance(features, sent))


def _distance(features: Tensor, sent: Tensor) -> float:
    numbers = [(part.mean(0).flatten(), part.std(0, correction=0).flatten()) for part in (features, sent)]
    return sum(float((mine - theirs).square().mean()) for mine, theirs in zip(*numbers))


def feature_maps(features: Tensor, image: torch.Size) -> Tensor:
    """Features as maps `[N, C, h, w]` that the image's size is a multiple of; vectors and others become 1 x 1 maps."""
    if features.ndim == 4 and image[1] % features.shape[2] == 0 and image[2] % features.shape[3] == 0:
        return features
    return features.flatten(1)[:, :, None, None]


def standardised(maps: Tensor) -> Tensor:
    """Every channel with mean 0 and variance 1, as the extractor may have changed since."""
    mean, std = maps.mean((0, 2, 3), keepdim=True), maps.std((0, 2, 3), correction=0, keepdim=True)
    return (maps - mean) / (std + 1e-5)


# ---- decoders ---------------------------------------------------------------------------------------------------


def linear_decoder(known: Tensor, images: Tensor) -> Callable[[Tensor], Tensor]:
    """Ridge regression from 3 x 3 patches of features to the block of pixels in their middle."""
    block = (images.shape[2] // known.shape[2], images.shape[3] // known.shape[3])
    gram, cross = torch.zeros(()), torch.zeros(())
    for maps, part in zip(torch.split(known, CHUNK), torch.split(images, CHUNK)):
        x, y = _patches(maps), F.unfold(part, block, stride=block).transpose(1, 2).flatten(0, 1).double()
        gram, cross = gram + x.T @ x, cross + x.T @ y
    ridge = RIDGE * gram.diagonal().mean() * torch.eye(len(gram), dtype=gram.dtype)
    weights = torch.linalg.solve(gram + ridge, cross)

    def decode(maps: Tensor) -> Tensor:
        parts = []
        for part in torch.split(maps, CHUNK):
            blocks = (_patches(part) @ weights).float().unflatten(0, (len(part), -1)).transpose(1, 2)
            parts.append(F.fold(blocks, tuple(images.shape[2:]), block, stride=block))
        return torch.cat(parts)

    return decode


def _patches(maps: Tensor) -> Tensor:
    """One row for each place of each map: its neighbourhood, and 1."""
    size = _kernel(maps)
    rows = F.unfold(maps, size, padding=size // 2).transpose(1, 2).flatten(0, 1).double()
    return F.pad(rows, (0, 1), value=1.0)


def _kernel(maps: Tensor) -> int:
    return 1 if maps.shape[2:] == (1, 1) else 3


def convolutional_decoder(known: Tensor, images: Tensor, epochs: int, seed: int) -> Callable[[Tensor], Tensor]:
    """Three convolutions, trained on the squared error of pixels; the last one gives a block of pixels per place."""
    block = (images.shape[2] // known.shape[2], images.shape[3] // known.shape[3])
    outputs, size = images.shape[1] * block[0] * block[1], _kernel(known)
    width = min(max(WIDTHS[0], 2 * outputs), WIDTHS[1])
    with seeded_globals(seed):
        network = nn.Sequential(
            nn.Conv2d(known.shape[1], width, size, padding=size // 2),
            nn.ReLU(),
            nn.Conv2d(width, width, size, padding=size // 2),
            nn.ReLU(),
            nn.Conv2d(width, outputs, size, padding=size // 2),
        )

    def decode(maps: Tensor) -> Tensor:
        return F.fold(network(maps).flatten(2), tuple(images.shape[2:]), block, stride=block)

    optimizer = torch.optim.Adam(network.parameters(), RATE)
    generator = torch_generator(seed, "shuffle")
    for _ in range(epochs):
        for rows in torch.split(torch.randperm(len(images), generator=generator), CHUNK):
            optimizer.zero_grad()
            F.mse_loss(decode(known[rows]), images[rows]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()

    def rebuild(maps: Tensor) -> Tensor:
        with torch.no_grad():
            return torch.cat([decode(part) for part in torch.split(maps, CHUNK)])

    return rebuild
