"""A table of functions between two layers: which keep channels apart, so that some can go, and which do not."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
import zoo
from torch import Tensor, nn
from zoo import Net

import barebones as bb
from barebones.running.outputs import difference
from barebones.running.randomize import randomize_
from barebones.scope import matched

pytestmark = pytest.mark.usefixtures("one_thread")

Function = Callable[[Tensor], Tensor]


def rotated(x: Tensor) -> Tensor:
    half = x.shape[1] // 2
    return torch.cat([-x[:, half:], x[:, :half]], 1)


def as_complex(x: Tensor) -> Tensor:
    last = x.movedim(1, -1)
    turned = torch.view_as_complex(last.reshape(*last.shape[:-1], -1, 2).contiguous()) * (1 + 1j)
    return torch.view_as_real(turned).flatten(-2).movedim(-1, 1)


def attended(x: Tensor) -> Tensor:
    """Let every pixel look at all others."""
    pixels = x.flatten(2).transpose(1, 2)
    return ((pixels @ pixels.transpose(1, 2)).softmax(-1) @ pixels).transpose(1, 2).reshape(x.shape)


def heads(x: Tensor, mask: bool = False) -> Tensor:
    """Attention among pixels with heads of two channels, without and with a mask made of channels."""
    tokens = x.flatten(2).transpose(1, 2)
    q = tokens.reshape(*tokens.shape[:2], -1, 2).transpose(1, 2)
    bias = q.sum(-1, keepdim=True) if mask else None
    return F.scaled_dot_product_attention(q, q, q, bias).transpose(1, 2).flatten(2).transpose(1, 2).reshape(x.shape)


def built_up(x: Tensor) -> Tensor:
    y = torch.zeros(x.shape, dtype=x.dtype)
    y[:, :4], y[:, 4:] = x[:, 4:], x[:, :4]
    return y


APART: dict[str, Function] = {
    "a comparison": lambda x: torch.where(x > 0, x, 0.1 * x),
    "in place by position": lambda x: F.relu(x, True).add_(1),
    "into out": lambda x: torch.mul(x, 2, out=torch.empty_like(x)) if not x.requires_grad else x * 2,
    "flip": lambda x: x.flip(1),
    "pixel shuffle": lambda x: F.pixel_unshuffle(F.pixel_shuffle(x, 2), 2),
    "channel shuffle": lambda x: F.channel_shuffle(x, 4),
    "halves": rotated,
    "largest of pairs": lambda x: torch.cat([x.view(len(x), -1, 2, *x.shape[2:]).amax(2)] * 2, 1),
    "heads": heads,
    "a mask made of channels": lambda x: heads(x, mask=True),
    "circular padding": lambda x: F.pad(x, (1, 1, 1, 1), mode="circular"),
    "upsampling": lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"),
}
MIXED: dict[str, Function] = {
    "local response norm": lambda x: F.local_response_norm(x, 3),
    "a pool over channels": lambda x: F.avg_pool3d(F.pad(x[:, None], (0, 0, 0, 0, 1, 1)), (3, 1, 1), 1)[:, 0],
    "roll": lambda x: x.roll(1, 1),
    "sort": lambda x: x.sort(1)[0],
    "sum so far": lambda x: x.cumsum(1),
    "normalize": lambda x: F.normalize(x, dim=1),
    "largest channel": lambda x: x - x.amax(1, keepdim=True),
    "third largest": lambda x: x - x.kthvalue(3, 1, keepdim=True)[0],
    "differences of neighbors": lambda x: torch.cat([x[:, 1:] - x[:, :-1], x[:, :1]], 1),
    "given sizes": lambda x: x.reshape(len(x), 4, 2, *x.shape[2:]).transpose(1, 2).reshape(len(x), 8, *x.shape[2:]),
    "given widths": lambda x: torch.cat([x[:, 4:], x[:, :4]], 1),
    "padded channels": lambda x: F.pad(x[:, :4], (0, 0, 0, 0, 2, 2)),
    "a buffer for each channel": lambda x: x * torch.arange(1.0, 9.0, dtype=x.dtype)[:, None, None],
    "the number of channels": lambda x: x * x.shape[1],
    "two assignments": built_up,
    "complex values": as_complex,
    "attention": attended,
    "correlations": lambda x: torch.einsum("bchw,bdhw->bcd", x, x).sum(2)[..., None, None] * x,
    "unfold": lambda x: F.fold(F.unfold(x, 3, padding=1), x.shape[2:], 3, padding=1),
}  # fmt: skip


@pytest.mark.parametrize("name", [*APART, *MIXED])
def test_a_function_keeps_its_channels_unless_it_keeps_them_apart(name):
    function = (APART | MIXED)[name]
    forward = lambda net, x: net.last(torch.relu(function(net.second(torch.relu(net.first(x)))))).mean((2, 3))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Net(forward, first=nn.Conv2d(2, 8, 3), second=nn.Conv2d(8, 8, 3), last=nn.Conv2d(8, 3, 1)).double()
        x = torch.randn(2, 2, 8, 8, dtype=torch.double)
    masks = zoo.keep_all(model)
    masks["first.weight"][:3] = False
    pairs = name in ("halves", "largest of pairs")  # each is used at two places
    masks["last.weight"][:, [0, 4] if pairs else [0, 1, 2, 3]] = False
    small = bb.shrink(model, masks, x)
    assert (small.module.second.out_channels < 8) == (name in APART), small.plan
    for seed, scale in enumerate((1e-3, 1.0, 255.0)):
        randomize_(small.module, seed, matched(small.module, small.masks))
        inputs = scale * torch.randn(2, 2, 8, 8, dtype=torch.double, generator=torch.Generator().manual_seed(seed))
        for train in (False, True):
            large = small.expand().train(train)
            assert difference(large(inputs), small.module.train(train)(inputs)) < 1e-9
