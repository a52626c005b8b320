"""The PyTorch peer of train_step.py and inference.py: the same ResNet in plain PyTorch, channels last.

Trains or predicts some batches for each line on stdin and prints the speed as a line of JSON, or
{"unavailable": reason} if torch.compile can't compile here. Images are kept as bytes in memory; a batch is
cropped and flipped as a whole, as in airbench (Jordan, "94% on CIFAR-10 in 3.29 Seconds on a Single GPU",
2024, arXiv:2404.00498). The update is fused, gradients are set to None, and no value is read within a turn.
"""

import argparse
import contextlib
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch._inductor.config
import torch.nn.functional as F  # noqa: N812 - the usual name
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from benchmarks.turns import COLD_STEPS, read_options, serve_turns

# As in processes.train_command; PyTorch adds the weight decay to the gradient.
LEARNING_RATE, MOMENTUM, WEIGHT_DECAY = 0.1, 0.9, 2e-4
BATCH_NORM_MOMENTUM = 1 - 0.997  # labkit's decay is 0.997; PyTorch's momentum is one minus that
STAGE_WIDTHS = (16, 32, 64)  # He et al. (2015), arXiv:1512.03385, table 6
PADDING = 4  # section 4.2


class Block(nn.Module):
    """Two 3x3 convolutions; if the shape changes, the shortcut is pooled and padded with zero channels."""

    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels, momentum=BATCH_NORM_MOMENTUM)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels, momentum=BATCH_NORM_MOMENTUM)
        self.stride, self.extra = stride, channels - in_channels

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        residual = F.relu(self.norm1(self.conv1(x)), inplace=True)
        residual = self.norm2(self.conv2(residual))
        if self.stride > 1:
            x = F.avg_pool2d(x, self.stride)
        if self.extra:
            x = F.pad(x, (0, 0, 0, 0, self.extra // 2, self.extra - self.extra // 2))
        return F.relu(residual.add_(x), inplace=True)


class ResNet(nn.Module):
    """ResNet v1 with basic blocks: images float [batch, 3, height, width] to logits [batch, classes]."""

    def __init__(self, num_layers: int, num_classes: int) -> None:
        super().__init__()
        channels = STAGE_WIDTHS[0]
        self.conv = nn.Conv2d(3, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels, momentum=BATCH_NORM_MOMENTUM)
        blocks = []
        for stage, width in enumerate(STAGE_WIDTHS):
            for index in range((num_layers - 2) // 6):
                blocks.append(Block(channels, width, 2 if stage and index == 0 else 1))
                channels = width
        self.blocks = nn.Sequential(*blocks)
        self.logits = nn.Linear(channels, num_classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(F.relu(self.norm(self.conv(x)), inplace=True))
        return self.logits(x.mean((2, 3)))


def fold_norms(model: ResNet) -> None:
    """Fold each batch normalization into the convolution before it; for prediction only."""

    def fold(owner: nn.Module, convolution: str, norm: str) -> None:
        folded = fuse_conv_bn_eval(getattr(owner, convolution), getattr(owner, norm))
        setattr(owner, convolution, folded)
        setattr(owner, norm, nn.Identity())

    fold(model, "conv", "norm")
    for block in model.blocks:
        fold(block, "conv1", "norm1")
        fold(block, "conv2", "norm2")


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Return SGD that updates all weights in one fused call."""
    return torch.optim.SGD(
        model.parameters(), LEARNING_RATE, momentum=MOMENTUM, weight_decay=WEIGHT_DECAY, fused=True
    )


def make_loss(model: nn.Module, precision: str) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return the mean cross-entropy of (images, labels), with the network in ``precision``."""

    def loss(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with autocast(precision):
            logits = model(images)
        return F.cross_entropy(logits.float(), labels)

    return loss


def autocast(precision: str) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which PyTorch computes in ``precision``."""
    if precision == "float32":
        return contextlib.nullcontext()
    return torch.autocast("cpu", dtype=torch.bfloat16)


def views(images: np.ndarray, padding: int, mode: str) -> torch.Tensor:
    """Return every crop of the padded ``images``, uint8 [n, top, left, height, width, channels], uncopied."""
    _, height, width, _ = images.shape
    widths = ((0, 0), (padding, padding), (padding, padding), (0, 0))
    padded = torch.from_numpy(np.pad(images, widths, mode))  # PyTorch can't reflect bytes
    return padded.unfold(1, height, 1).unfold(2, width, 1).permute(0, 1, 2, 4, 5, 3)


def batches(
    arrays: Any, size: int, padding: int = PADDING, mode: str = "constant", *, alternating: bool = False
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield shuffled, cropped, mirrored and standardised images, channels last, and labels, without end.

    Args:
        arrays: of a file by ``common.write_arrays``.
        size: of a batch.
        padding: pixels around an image, filled in ``mode``.
        mode: of ``numpy.pad``.
        alternating: whether every second epoch mirrors those images that the one before didn't; otherwise
            chance decides for each.
    """
    shown = views(arrays["images"], padding, mode)
    labels = torch.from_numpy(arrays["labels"].astype(np.int64))
    standardize = standardizer(arrays)
    mirrored = torch.rand(len(labels)) < 0.5
    while True:
        order = torch.randperm(len(labels))
        mirrored = ~mirrored if alternating else torch.rand(len(labels)) < 0.5
        for index in order.split(size):
            if len(index) == size:
                top, left = torch.randint(0, 2 * padding + 1, (2, size))
                images = shown[index, top, left]
                images = torch.where(mirrored[index][:, None, None, None], images.flip(2), images)
                yield standardize(images), labels[index]


def standardizer(arrays: Any) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the conversion of uint8 [b, h, w, channels] to float32 [b, channels, h, w], channels last."""
    std = torch.tensor(arrays["std"], dtype=torch.float32)
    scale, shift = 1 / (255 * std), -torch.tensor(arrays["mean"], dtype=torch.float32) / std
    # A permuted view of a contiguous [b, h, w, channels] is channels last.
    return lambda images: images.float().mul_(scale).add_(shift).permute(0, 3, 1, 2)


def training(arrays: Any, options: argparse.Namespace) -> Callable[[], float]:
    """Return a function that trains some warm-up steps and ``steps`` more, and returns images per second."""
    model = ResNet(options.num_layers, int(arrays["labels"].max()) + 1)
    model = model.to(memory_format=torch.channels_last).train()
    optimizer = make_optimizer(model)
    loss = make_loss(model, options.precision)
    if options.form == "compile":
        loss = torch.compile(loss, dynamic=False)
    source = batches(arrays, options.batch_size)

    def turn() -> float:
        started = 0.0
        for step, (images, labels) in enumerate(itertools.islice(source, options.steps + COLD_STEPS)):
            if step == COLD_STEPS:
                started = time.perf_counter()
            optimizer.zero_grad(set_to_none=True)
            loss(images, labels).backward()
            optimizer.step()
        return options.steps * options.batch_size / (time.perf_counter() - started)

    return turn


def prediction(arrays: Any, options: argparse.Namespace) -> Callable[[], float]:
    """Return a function that predicts ``steps`` standardised batches and returns images per second."""
    model = ResNet(options.num_layers, int(arrays["labels"].max()) + 1)
    model.eval()
    if options.folded and options.form == "eager":
        fold_norms(model)
    dtype = torch.float32 if options.precision == "float32" else torch.bfloat16
    model = model.to(dtype, memory_format=torch.channels_last)

    def predict(images: torch.Tensor) -> torch.Tensor:
        return model(images.to(dtype)).float()

    # Weights as constants: the compiler then folds the norms and lays the weights out for its kernels.
    torch._inductor.config.freezing = options.folded
    run = torch.compile(predict, dynamic=False) if options.form == "compile" else predict
    whole = len(arrays["images"]) // options.batch_size * options.batch_size
    images = standardizer(arrays)(torch.from_numpy(arrays["images"][:whole]))
    source = itertools.cycle(images.split(options.batch_size))

    def turn() -> float:
        started = time.perf_counter()
        with torch.inference_mode():
            for batch in itertools.islice(source, options.steps):
                run(batch).numpy()
        return options.steps * options.batch_size / (time.perf_counter() - started)

    return turn


def main() -> None:
    options = read_options(folded=False)  # whether to predict with folded batch normalization
    torch.manual_seed(0)
    torch.set_flush_denormal(True)  # as TensorFlow does
    with np.load(options.arrays) as stored:
        arrays = dict(stored)
    turn = training(arrays, options) if options.task == "train" else prediction(arrays, options)

    def measured() -> dict[str, Any]:
        try:
            return {"images_per_second": turn()}
        except Exception as error:
            if options.form == "compile" and _is_compiler_error(error):
                return {"unavailable": f"{type(error).__name__}: {error}".splitlines()[0]}
            raise

    serve_turns(measured)


def _is_compiler_error(error: Exception) -> bool:
    from torch._dynamo.exc import TorchDynamoException
    from torch._inductor.exc import CppCompileError, InvalidCxxCompiler

    return isinstance(error, TorchDynamoException | CppCompileError | InvalidCxxCompiler)


if __name__ == "__main__":
    main()
