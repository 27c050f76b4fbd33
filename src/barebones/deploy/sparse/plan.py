"""The plan of one layer for one input shape: the tables of offsets by which the kernel walks over the pixels."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

LANES = 16  # pixels in one vector
BLOCK = 8  # vectors that are summed in registers at the same time
PIXELS = 512  # small images are processed together, up to about this many pixels
DOTS = 8  # from this many images of one pixel on, vectors of pixels are faster than one dot product per image
ROW = 4  # the fixed cost of a row, measured in kept weights
LINE = 16  # floats in one cache line
TINY = 2**17  # below this many multiply-adds a second thread does not pay
PENALTY = 0.85  # cost of reading straight through a padded plane: each output row is copied once more


class KernelArguments(ctypes.Structure):
    """The structure that the kernel reads; the structure of this name in kernel.cpp explains each field."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("values", "offsets", "starts", "bias")),
        *((name, ctypes.c_int64) for name in ("rows", "relu", "dots")),
        *((name, ctypes.c_void_p) for name in ("reads", "writes", "blocks")),
        *((name, ctypes.c_int64) for name in ("block_count", "groups", "group_in", "group_out", "row_out")),
        ("parts", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("part_count", "planes")),
        ("origins", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("plane_size", "images", "image_in", "high", "wide", "in_high")),
        *((name, ctypes.c_int64) for name in ("in_wide", "step_high", "step_wide", "segments", "length", "row_size")),
        *((name, ctypes.c_void_p) for name in ("sources", "targets")),
    )


@dataclass(frozen=True)
class Geometry:
    """Kernel size, stride, dilation, padding and groups of a convolution; a linear layer has a kernel of one pixel."""

    kernel: tuple[int, int] = (1, 1)
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    before: tuple[int, int] = (0, 0)  # rows of zeros above the image, columns of zeros to its left
    after: tuple[int, int] = (0, 0)  # rows below, columns to the right
    groups: int = 1

    def output(self, high: int, wide: int) -> tuple[int, int]:
        """Return the height and width of the output for an input of this height and width.

        >>> Geometry((3, 3), (2, 2), before=(1, 1), after=(1, 1)).output(8, 7)
        (4, 4)
        """
        sides = []
        for axis, size in enumerate((high, wide)):
            reach = self.dilation[axis] * (self.kernel[axis] - 1) + 1
            sides.append((size + self.before[axis] + self.after[axis] - reach) // self.stride[axis] + 1)
        return sides[0], sides[1]


@dataclass(frozen=True)
class KeptWeights:
    """The kept weights of a layer, row by row; a row holds the weights of one output channel."""

    rows: int
    channels: int  # input channels
    geometry: Geometry
    values: Tensor
    starts: Tensor  # int32: the weights of row r are starts[r] .. starts[r + 1]
    positions: Tensor  # input channel, kernel row and kernel column of each weight
    bias: Tensor

    @staticmethod
    def from_weight(weight: Tensor, bias: Tensor | None, geometry: Geometry) -> KeptWeights:
        """Collect the nonzero weights of a weight of shape (rows, channels of a group, height, width).

        >>> weight = torch.tensor([[0.0, 2.0], [0.0, 0.0], [3.0, 4.0]]).view(3, 2, 1, 1)
        >>> kept = KeptWeights.from_weight(weight, None, Geometry())
        >>> kept.values.tolist(), kept.starts.tolist(), kept.positions[:, 0].tolist()
        ([2.0, 3.0, 4.0], [0, 1, 1, 3], [1, 0, 1])
        """
        weight = weight.detach()
        indices = weight.nonzero()
        counts = torch.bincount(indices[:, 0], minlength=len(weight))
        starts = torch.cat([counts.new_zeros(1), counts.cumsum(0)]).int()
        first_channel = indices[:, 0] // max(len(weight) // geometry.groups, 1) * weight.shape[1]
        positions = torch.stack([indices[:, 1] + first_channel, indices[:, 2], indices[:, 3]], 1)
        biases = weight.new_zeros(len(weight)) if bias is None else bias.detach().clone().contiguous()
        channels = weight.shape[1] * geometry.groups
        values = weight[tuple(indices.T)].contiguous()
        return KeptWeights(len(weight), channels, geometry, values, starts, positions, biases)


class KernelPlan:
    """The arguments of the kernel for one layer and one input shape, with the tables that they point to."""

    def __init__(
        self, kept: KeptWeights, shape: tuple[int, int, int, int], threads: int, relu: bool, gather: bool = False
    ) -> None:
        self.arguments = KernelArguments()
        self.in_place = False  # whether the kernel reads the input itself rather than gathered planes
        self.output = (shape[0], kept.rows, *kept.geometry.output(*shape[2:]))
        self._tables: list[Tensor] = []  # must live as long as the arguments
        work = len(kept.values) * shape[0] * self.output[2] * self.output[3]
        self.threads = threads = 1 if work < TINY else threads
        self._set(values=kept.values, starts=kept.starts, bias=kept.bias, rows=kept.rows, relu=int(relu))
        one_pixel = shape[2:] == self.output[2:] == kept.geometry.kernel == (1, 1) and kept.geometry.before == (0, 0)
        if one_pixel and shape[0] < DOTS:
            self._plan_dots(kept, shape, threads)
        else:
            self._plan_pixels(kept, shape, threads, gather)
        self.address = ctypes.addressof(self.arguments)

    def _set(self, **fields: Tensor | int) -> None:
        """Set fields of the arguments; a tensor is kept alive and passed by its address."""
        for name, value in fields.items():
            if isinstance(value, Tensor):
                self._tables.append(value := value.contiguous())
                value = value.data_ptr()
            setattr(self.arguments, name, value)

    def _plan_dots(self, kept: KeptWeights, shape: tuple[int, int, int, int], threads: int) -> None:
        """Plan one dot product per row and image, for a few images of one pixel."""
        self._set(dots=1, offsets=kept.positions[:, 0].int(), images=shape[0], image_in=kept.channels)
        self._set_parts(kept, threads)

    def _plan_pixels(self, kept: KeptWeights, shape: tuple[int, int, int, int], threads: int, gather: bool) -> None:
        """Plan sums of shifted pixel rows, read from the input itself or from gathered planes."""
        images, channels, high_in, wide_in = shape
        _, rows, high, wide = self.output
        stride, dilation, before = kept.geometry.stride, kept.geometry.dilation, kept.geometry.before
        steps = kept.positions[:, 1:] * torch.tensor(dilation)  # input pixels from the first position of the kernel
        phases, shifts = steps % torch.tensor(stride), steps // torch.tensor(stride)
        least = shifts.amin(0) if len(shifts) else shifts.new_zeros(2)
        shifts = shifts - least
        most = shifts.amax(0).tolist() if len(shifts) else [0, 0]
        # A plane is one channel of the input as one phase of the stride sees it: every `stride`-th pixel from `origin`.
        origins = torch.cat([kept.positions[:, :1], phases - torch.tensor(before) + least * torch.tensor(stride)], 1)
        planes, plane_of = origins.unique(dim=0, return_inverse=True)
        in_place = stride == (1, 1) and most == [0, 0] and (high, wide) == (high_in, wide_in) and high * wide >= LANES
        in_place = in_place and not bool(origins[:, 1:].any()) and not gather
        self.in_place = in_place
        plane_high, plane_wide = high + most[0], wide + most[1]

        together = _together(images, plane_high * plane_wide, threads)
        groups = images // together
        image_out = rows * high * wide
        if in_place:
            image_in = channels * high * wide
            offsets = kept.positions[:, 0] * (high * wide)
        else:
            image_in = plane_high * plane_wide
            plane_size = _apart(together * image_in)
            offsets = plane_of * plane_size + shifts[:, 0] * plane_wide + shifts[:, 1]
            origins = planes * torch.tensor([high_in * wide_in, 1, 1])
            self._set(planes=len(planes), origins=origins, plane_size=plane_size, images=together)
            self._set(image_in=channels * high_in * wide_in, high=plane_high, wide=plane_wide)
            self._set(in_high=high_in, in_wide=wide_in, step_high=stride[0], step_wide=stride[1])
        if len(offsets) and int(offsets.max()) >= 2**31:
            raise ValueError(f"an input of shape {shape} is too large for the sparse kernel; use smaller batches")
        self._set(offsets=offsets.int(), group_in=together * channels * high_in * wide_in)
        self._set(groups=groups, group_out=together * image_out, row_out=high * wide)

        number = torch.arange(together)[:, None]
        if plane_wide == wide and high * wide >= LANES:  # the rows of a plane follow each other without a gap
            at = _starts(high * wide)
            reads, writes = (number * image_in + at).flatten(), (number * image_out + at).flatten()
        elif wide >= LANES and PENALTY * -(-wide // LANES) * LANES <= plane_wide:  # row by row
            at, line = _starts(wide), torch.arange(high)[:, None]
            reads = (number[..., None] * image_in + line * plane_wide + at).flatten()
            writes = (number[..., None] * image_out + line * wide + at).flatten()
        else:  # straight through, including the pixels between rows and between images; rows are copied out later
            size = (together - 1) * image_in + (high - 1) * plane_wide + wide
            reads = writes = torch.arange(0, size, LANES)
            line = torch.arange(high)
            self._set(sources=(number * image_in + line * plane_wide).flatten())
            self._set(targets=(number * image_out + line * wide).flatten())
            self._set(segments=together * high, length=wide, row_size=len(reads) * LANES)
        blocks = -(-len(reads) // BLOCK)
        self._set(reads=reads, writes=writes, blocks=torch.arange(blocks + 1) * len(reads) // blocks)
        self._set(block_count=blocks)
        even_blocks = not self.arguments.segments and (blocks % threads == 0 or blocks >= 4 * threads)
        self._set_parts(kept, 1 if groups >= threads or even_blocks else threads)

    def _set_parts(self, kept: KeptWeights, count: int) -> None:
        """Divide the rows into parts of about equal work."""
        work = kept.starts.long() + ROW * torch.arange(kept.rows + 1)
        goals = torch.arange(count + 1) * work[-1] // count
        parts = torch.searchsorted(work, goals)
        parts[0], parts[-1] = 0, kept.rows
        self._set(parts=parts, part_count=count)


def _together(images: int, pixels: int, threads: int) -> int:
    """Return how many images form one group: small images go together, as long as every thread gets a group.

    >>> _together(64, 16, 2), _together(64, 16, 16), _together(64, 1024, 2), _together(1, 16, 2), _together(3, 16, 2)
    (32, 4, 1, 1, 1)
    """
    fits = [n for n in range(1, images + 1) if images % n == 0 and n * pixels <= PIXELS and images // n >= threads]
    return max(fits, default=1)


def _apart(size: int) -> int:
    """Return the floats from one plane to the next: an odd number of cache lines, so planes do not evict each other.

    >>> _apart(1024), _apart(100)
    (1040, 112)
    """
    lines = -(-size // LINE)
    return (lines | 1) * LINE


def _starts(size: int) -> Tensor:
    """Return the starts of vectors that together cover `size` pixels; the last vector may overlap the one before it.

    >>> _starts(40).tolist()
    [0, 16, 24]
    """
    return torch.arange(0, size, LANES).clamp(max=size - LANES)
