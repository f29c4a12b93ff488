"""The paper's U-Net for polyp images, in its three forms (section 3.3.2).

For images of 128 × 128 and c = 16 channels in the first convolution; here channels come first. The
paper draws the network and prints no parameters. The forms differ in the fourth reduction, down4,
and in its counterpart, up4.

==========  =======================================  ===================  ==================
block       layers                                   output               in general
==========  =======================================  ===================  ==================
encoder1    2 × (conv 3 × 3, ReLU)                   16 × 128 × 128       c, side
encoder2    down1 (MaxPool), then the same           32 × 64 × 64         2c, side / 2
encoder3    down2 (MaxPool), then the same           64 × 32 × 32         4c, side / 4
encoder4    down3 (MaxPool), then the same           128 × 16 × 16        8c, side / 8
bottleneck  down4, then the same                     128 × 8 × 8 (4 × 4)  8c, side / 16 (32)
decoder4    up4, join4, 2 × (conv, ReLU, BatchNorm)  128 × 16 × 16        8c, side / 8
decoder3    up3, join3, then the same                64 × 32 × 32         4c, side / 4
decoder2    up2, join2, then the same                32 × 64 × 64         2c, side / 2
decoder1    up1, join1, then the same                16 × 128 × 128       c, side
output      conv 1 × 1                               1 × 128 × 128        1, side
==========  =======================================  ===================  ==================

=================  ======================================  ======================================
form               down4                                   up4
=================  ======================================  ======================================
base               MaxPool 2 × 2                           transposed convolution 2 × 2, stride 2
tpl                TensorProjection, side / 8 → side / 16  TransposeTensorProjection back
tpl-aggressive     TensorProjection, side / 8 → side / 32  TransposeTensorProjection back
=================  ======================================  ======================================

The forms tpl-dct and tpl-blur, which are not the paper's, are tpl with other initializations.

"Batch normalization is applied after each convolutional layer in the decoder": a layer of the
paper's Keras holds its ReLU, so BatchNorm comes after the ReLU. The sigmoid is left to the loss.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tensorprojection import TensorProjection, TransposeTensorProjection
from tensorprojection.init import InitName

from ..errors import StudyError
from .layers import init_by_name, keras_batch_norm

IMAGE_CHANNELS = 3


@dataclass(frozen=True)
class Form:
    """The fourth reduction: its title, its factor, and its projections' init; None for MaxPool."""

    title: str
    init: InitName | None = "normal"
    factor: int = 2

    def down(self, channels: int, side: int) -> nn.Module:
        if self.init is None:
            return nn.MaxPool2d(2)
        return TensorProjection(*self._shapes(channels, side), init=self.init)

    def up(self, channels: int, side: int) -> nn.Module:
        if self.init is None:
            return _enlarge(channels, channels)
        large, small = self._shapes(channels, side)
        return TransposeTensorProjection(small, large, init=self.init)

    def _shapes(self, channels: int, side: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        small = side // self.factor
        return (channels, side, side), (channels, small, small)


FORMS: dict[str, Form] = {
    "base": Form("baseline U-Net", init=None),
    "tpl": Form("TensorProjection"),
    "tpl-aggressive": Form("TensorProjection, aggressive", factor=4),
    "tpl-dct": Form("TensorProjection, DCT init", init="dct"),
    "tpl-blur": Form("TensorProjection, blur init", init="blur"),
}


def unet(form: str, channels: int = 16, size: int = 128, *, leaky: bool = False) -> UNet:
    """Return the network of that form for RGB images of ``size × size``, initialized as in Keras.

    It gives logits, ``(N, 1, size, size)``. ``channels`` are the first convolution's, 16 or 64 in
    the paper. ``leaky`` puts a LeakyReLU(0.1) after a projection. Networks of one seed
    have the same initial values in all that they share, whatever their form; up4 alone differs.

    >>> network = unet("tpl")
    >>> network.down4
    TensorProjection((128, 16, 16) -> (128, 8, 8), eps=0.001, init='normal', 256 parameters)
    """
    step = 8 * FORMS[form].factor
    if size < step or size % step:
        raise StudyError(f"Expected a size divisible by {step}, got {size}.")
    return init_by_name(lambda: UNet(FORMS[form], channels, size, leaky))


class UNet(nn.Module):
    """The encoder, the bottleneck and the decoder; made by :func:`unet`."""

    def __init__(self, form: Form, channels: int, size: int, leaky: bool) -> None:
        super().__init__()
        self.size = size
        widths = [channels, 2 * channels, 4 * channels, 8 * channels]
        wide = widths[-1]
        before = [IMAGE_CHANNELS, *widths[:-1]]
        for k, (i, o) in enumerate(zip(before, widths, strict=True), start=1):
            self.add_module(f"encoder{k}", _encoder(i, o))
            self.add_module(f"down{k}", nn.MaxPool2d(2) if k < 4 else form.down(wide, size // 8))
        self.leaky4 = nn.LeakyReLU(0.1) if leaky and form.init is not None else None
        self.bottleneck = _encoder(wide, wide)
        for k in (4, 3, 2, 1):
            width = widths[k - 1]
            up = form.up(wide, size // 8) if k == 4 else _enlarge(widths[k], width)
            self.add_module(f"up{k}", up)
            self.add_module(f"join{k}", Join())
            self.add_module(f"decoder{k}", _decoder(width))
        self.output = nn.Conv2d(channels, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        if x.ndim != 4 or x.shape[1:] != (IMAGE_CHANNELS, self.size, self.size):
            raise ValueError(
                f"Expected images of shape (N, {IMAGE_CHANNELS}, {self.size}, {self.size}), "
                f"got {tuple(x.shape)}."
            )
        skips = {}
        for k in (1, 2, 3, 4):
            skips[k] = getattr(self, f"encoder{k}")(x)
            x = getattr(self, f"down{k}")(skips[k])
        if self.leaky4 is not None:
            x = self.leaky4(x)
        x = self.bottleneck(x)
        for k in (4, 3, 2, 1):
            x = getattr(self, f"join{k}")(getattr(self, f"up{k}")(x), skips[k])
            x = getattr(self, f"decoder{k}")(x)
        logits: Tensor = self.output(x)
        return logits


class Join(nn.Module):
    """Concatenate enlarged features and those of the encoder; a module, so that tables show it."""

    def forward(self, enlarged: Tensor, skipped: Tensor) -> Tensor:
        return torch.cat([enlarged, skipped], dim=1)


def _encoder(before: int, after: int) -> nn.Sequential:
    block = nn.Sequential()
    for k, channels in ((1, before), (2, after)):
        block.add_module(f"conv{k}", nn.Conv2d(channels, after, 3, padding="same"))
        block.add_module(f"relu{k}", nn.ReLU())
    return block


def _decoder(channels: int) -> nn.Sequential:
    block = nn.Sequential()
    for k, before in ((1, 2 * channels), (2, channels)):
        block.add_module(f"conv{k}", nn.Conv2d(before, channels, 3, padding="same"))
        block.add_module(f"relu{k}", nn.ReLU())
        block.add_module(f"norm{k}", keras_batch_norm(channels))
    return block


def _enlarge(before: int, after: int) -> nn.ConvTranspose2d:
    return nn.ConvTranspose2d(before, after, 2, stride=2)
