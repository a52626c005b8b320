"""The backbones in plain PyTorch, channels first, written from the papers without a look at labkit's.

Layers are registered in the order in which labkit makes them (a projection before the convolutions that it
bridges), so that both get the same weights, kind by kind.
"""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from tests.models.reference_weights import KINDS, layer_weights

EPSILON = 1e-5
BATCH_NORM_MOMENTUM = 0.1  # the share that is replaced; a decay of 0.9


def same_padding(images: torch.Tensor, kernel: int, stride: int, value: float = 0.0) -> torch.Tensor:
    """Pad as TensorFlow's SAME does: a stride has the odd pixel on the right and at the bottom."""
    padding = []
    for size in (images.shape[3], images.shape[2]):
        needed = max(0, (-(-size // stride) - 1) * stride + kernel - size)
        padding += [needed // 2, needed - needed // 2]
    return functional.pad(images, padding, value=value)


class Convolution(nn.Conv2d):
    def __init__(self, channels: int, filters: int, kernel: int, stride: int = 1, bias: bool = False) -> None:
        super().__init__(channels, filters, kernel, stride, bias=bias)

    def forward(self, x):
        padded = same_padding(x, self.kernel_size[0], self.stride[0])
        return functional.conv2d(padded, self.weight, self.bias, self.stride)


def norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=EPSILON, momentum=BATCH_NORM_MOMENTUM)


class SqueezeExcite(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        hidden = max(channels // 16, 1)
        self.down, self.up = nn.Linear(channels, hidden), nn.Linear(hidden, channels)

    def forward(self, x):
        gate = torch.sigmoid(self.up(torch.relu(self.down(x.mean(dim=(2, 3))))))
        return x * gate[:, :, None, None]


class Block(nn.Module):
    """A residual block, post-activated (version 1) or pre-activated (2), of the kernels in ``kernels``."""

    def __init__(
        self, channels: int, widths: Sequence[int], kernels: Sequence[int], stride: int, *, version: int,
        project: bool, squeeze: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.version, self.stride, self.out = version, stride, widths[-1]
        self.changes = stride != 1 or channels != self.out
        inputs = [channels, *widths[:-1]]
        if version == 2:
            self.first_norm = norm(channels)
        projects = project and self.changes
        self.projection = Convolution(channels, self.out, 1, stride) if projects else None
        self.projection_norm = norm(self.out) if projects and version == 1 else None
        self.convolutions, self.norms = nn.ModuleList(), nn.ModuleList()
        for index, (before, width, kernel) in enumerate(zip(inputs, widths, kernels, strict=True)):
            self.convolutions.append(Convolution(before, width, kernel, stride if index == 0 else 1))
            if version == 1 or index < len(widths) - 1:
                self.norms.append(norm(width))
        self.squeeze = SqueezeExcite(self.out) if squeeze else nn.Identity()

    def shortcut(self, x):
        if self.projection is not None:
            x = self.projection(x)
            return x if self.projection_norm is None else self.projection_norm(x)
        if not self.changes:
            return x
        x = functional.avg_pool2d(x, self.stride)
        extra = self.out - x.shape[1]
        return functional.pad(x, (0, 0, 0, 0, extra // 2, extra - extra // 2))

    def forward(self, x):
        residual, bridged = x, x
        if self.version == 2:
            residual = torch.relu(self.first_norm(x))
            bridged = residual if self.changes else x
        for index, convolution in enumerate(self.convolutions):
            residual = convolution(residual)
            if index < len(self.norms):
                residual = self.norms[index](residual)
                if index < len(self.convolutions) - 1:
                    residual = torch.relu(residual)
        total = self.squeeze(residual) + self.shortcut(bridged)
        return torch.relu(total) if self.version == 1 else total


class ResidualNet(nn.Module):
    """ResNet, SE-ResNet and WideResNet: a convolution, three stages of blocks, an average, the logits."""

    def __init__(
        self, *, blocks: int, widths: Sequence[int] = (16, 32, 64), version: int = 1,
        bottleneck: bool = False, project: bool | None = None, squeeze: bool = False, classes: int = 10,
    ) -> None:  # fmt: skip
        super().__init__()
        self.version = version
        self.stem = Convolution(3, 16, 3)
        if version == 1:
            self.stem_norm = norm(16)
        self.blocks = nn.Sequential()
        before = 16
        for stage, width in enumerate(widths):
            for index in range(blocks):
                shape = ([width, width, 4 * width], (1, 3, 1)) if bottleneck else ([width] * 2, (3, 3))
                self.blocks.append(
                    Block(
                        before, *shape, stride=2 if stage and not index else 1, version=version,
                        project=bottleneck if project is None else project, squeeze=squeeze,
                    )
                )  # fmt: skip
                before = shape[0][-1]
        if version == 2:
            self.last_norm = norm(before)
        self.logits = nn.Linear(before, classes)

    def forward(self, x):
        x = self.stem(x)
        if self.version == 1:
            x = torch.relu(self.stem_norm(x))
        x = self.blocks(x)
        if self.version == 2:
            x = torch.relu(self.last_norm(x))
        return self.logits(x.mean(dim=(2, 3)))


def vgg(layout: str, channels: int = 3, classes: int = 10) -> nn.Module:
    """``layout``: widths and M for a pool, as in "64 M 128 M"."""
    layers = nn.Sequential()
    for word in layout.split():
        if word == "M":
            layers.append(nn.MaxPool2d(2))
            continue
        layers.extend([Convolution(channels, int(word), 3), norm(int(word)), nn.ReLU()])
        channels = int(word)
    return nn.Sequential(layers, nn.Flatten(), nn.Linear(channels, classes))


class ByRows(nn.Flatten):
    """Flattens row by row, with the channels last, as Keras does."""

    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1))


def lenet(channels: int = 3, classes: int = 10) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels, 6, 5), nn.Tanh(), nn.AvgPool2d(2),
        nn.Conv2d(6, 16, 5), nn.Tanh(), nn.AvgPool2d(2), ByRows(),
        nn.Linear(400, 120), nn.Tanh(), nn.Linear(120, 84), nn.Tanh(), nn.Linear(84, classes),
    )  # fmt: skip


class TutorialCNN(nn.Module):
    def __init__(self, size: int = 32, classes: int = 10) -> None:
        super().__init__()
        self.first, self.second = Convolution(3, 64, 5, bias=True), Convolution(64, 64, 5, bias=True)
        self.dense = nn.Sequential(
            nn.Linear((size // 4) ** 2 * 64, 384), nn.ReLU(), nn.Linear(384, 192), nn.ReLU()
        )
        self.logits = nn.Linear(192, classes)

    @staticmethod
    def pool(x):
        return functional.max_pool2d(same_padding(x, 3, 2, value=-torch.inf), 3, 2)

    @staticmethod
    def normalize(x):
        # PyTorch divides alpha by the number of channels in the window, 9; the tutorial has done so already.
        return functional.local_response_norm(x, size=9, alpha=0.001, beta=0.75, k=1.0)

    def forward(self, x):
        x = self.normalize(self.pool(torch.relu(self.first(x))))
        x = self.pool(self.normalize(torch.relu(self.second(x))))
        return self.logits(self.dense(x.permute(0, 2, 3, 1).flatten(1)))


class FastNet(nn.Module):
    """airbench94's network: whitening, three stages of two convolutions, a maximum, scaled logits.

    With ``depth`` 3 it is airbench96's: the third convolution, its channels weighted by squeeze and
    excitation, is added to the output of the first.
    """

    def __init__(
        self, widths: Sequence[int], activate: Callable[[torch.Tensor], torch.Tensor], depth: int = 2
    ) -> None:
        super().__init__()
        self.activate, self.depth = activate, depth
        self.whitening = nn.Conv2d(3, 24, 2, bias=False)
        self.convolutions, self.norms, self.squeezes = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        before = 24
        for width in widths:
            for inputs in (before, *[width] * (depth - 1)):
                self.convolutions.append(Convolution(inputs, width, 3))
                self.norms.append(norm(width))
            self.squeezes.append(SqueezeExcite(width) if depth > 2 else nn.Identity())
            before = width
        self.logits = nn.Linear(before, 10, bias=False)

    def forward(self, x):
        x = self.activate(self.whitening(x))
        for index, (convolution, normalize) in enumerate(zip(self.convolutions, self.norms, strict=True)):
            x = convolution(x)
            if index % self.depth == 0:
                first = x = self.activate(normalize(functional.max_pool2d(x, 2)))
            elif index % self.depth == 1:
                x = self.activate(normalize(x))
            else:
                x = self.activate(self.squeezes[index // self.depth](normalize(x)) + first)
        return self.logits(x.amax(dim=(2, 3))) / 9


def load_weights(network: nn.Module) -> nn.Module:
    """Give a network the weights of ``reference_weights``, and return it."""
    for where, module in _layers(network):
        arrays = layer_weights(*where, {name: array.shape for name, array in _keras_layout(module).items()})
        with torch.no_grad():
            for name, array in arrays.items():
                _tensor(module, name).copy_(torch.from_numpy(_turned(array) if name == "kernel" else array))
    return network


def weights_by_place(network: nn.Module) -> dict[str, np.ndarray]:
    """Return copies of all weights in Keras's layout by kind, number and name, such as ``dense 0 kernel``."""
    return {
        f"{kind} {number} {name}": array.copy()
        for (kind, number), module in _layers(network)
        for name, array in _keras_layout(module).items()
    }


def _layers(network: nn.Module) -> Iterator[tuple[tuple[str, int], nn.Module]]:
    for kind, owner in zip(KINDS, (nn.Conv2d, nn.BatchNorm2d, nn.Linear), strict=True):
        modules = [module for module in network.modules() if isinstance(module, owner)]
        yield from (((kind, number), module) for number, module in enumerate(modules))


def _tensor(module: nn.Module, name: str) -> torch.Tensor:
    names = {"kernel": "weight", "gamma": "weight", "beta": "bias", "moving_mean": "running_mean"}
    return getattr(module, {**names, "moving_variance": "running_var"}.get(name, name))


def _keras_layout(module: nn.Module) -> dict[str, np.ndarray]:
    names = ["gamma", "beta", "moving_mean", "moving_variance"]
    if not isinstance(module, nn.BatchNorm2d):
        names = ["kernel"] if module.bias is None else ["kernel", "bias"]
    arrays = {name: _tensor(module, name).detach().numpy() for name in names}
    return {name: _back(array) if name == "kernel" else array for name, array in arrays.items()}


def _turned(kernel: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(kernel.transpose(3, 2, 0, 1) if kernel.ndim == 4 else kernel.T)


def _back(kernel: np.ndarray) -> np.ndarray:
    return kernel.transpose(2, 3, 1, 0) if kernel.ndim == 4 else kernel.T
