"""The PyTorch peers of accuracy.py: whole trainings in plain PyTorch, channels last, by published recipes.

``airbench94_muon`` is that of Jordan (2024), github.com/KellerJordan/cifar10-airbench, on a CPU: weights in
float32 and, in bfloat16, autocast instead of weights in half precision. ``resnet20`` is labkit's preset
`resnet20_one_cycle` with the network of torch_peer.py. Images are bytes in memory; a batch is cropped and
flipped as a whole. The seconds of training don't include compilation: a few steps are made before the
training, whose results are dropped.
"""

import argparse
import copy
import datetime
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - the usual name
from torch import nn

from benchmarks.common import PRECISIONS
from benchmarks.torch_peer import ResNet, autocast, batches, make_loss, standardizer
from labkit.config import Config
from labkit.config.presets import preset_values
from labkit.optim.schedules import learning_rate_at
from labkit.run_directory import write_json_atomic

EVAL_BATCH = 500
Step = Callable[[torch.Tensor, torch.Tensor, int], None]


@dataclass(frozen=True)
class Training:
    """A network with its recipe. ``step`` trains on a batch; its last argument counts steps from 0.

    ``warmup``: steps, of which each compiles another form of the computation, or none. ``augmentation``:
    further arguments of ``torch_peer.batches``.
    """

    model: nn.Module
    optimizers: list[torch.optim.Optimizer]
    step: Step
    steps: int
    warmup: tuple[int, ...]
    batch_size: int
    augmentation: dict[str, Any] = field(default_factory=dict)

    def batches(self, arrays: Any) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return batches(arrays, self.batch_size, **self.augmentation)


# ---- airbench94_muon ------------------------------------------------------------------------------------


class Norm(nn.BatchNorm2d):
    """Batch normalization without a trained scale."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, eps=1e-12, momentum=0.4)
        self.weight.requires_grad = False


class Group(nn.Module):
    """conv-pool-norm-GELU-conv-norm-GELU, whose convolutions begin as the identity."""

    def __init__(self, in_channels: int, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, padding="same", bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding="same", bias=False)
        self.norm1, self.norm2 = Norm(channels), Norm(channels)
        for conv in (self.conv1, self.conv2):
            nn.init.dirac_(conv.weight.data[: conv.in_channels])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.gelu(self.norm1(F.max_pool2d(self.conv1(x), 2)))
        return F.gelu(self.norm2(self.conv2(x)))


class FastNet(nn.Module):
    """Images float [batch, 3, 32, 32] to logits [batch, classes]."""

    def __init__(self, num_classes: int, images: torch.Tensor) -> None:
        super().__init__()
        self.whiten = nn.Conv2d(3, 24, 2, bias=True)
        self.whiten.weight = nn.Parameter(whitening(images), requires_grad=False)
        self.groups = nn.Sequential(Group(24, 64), Group(64, 256), Group(256, 256))
        self.head = nn.Linear(256, num_classes, bias=False)
        self.head.weight.data /= self.head.weight.data.std()

    def forward(self, x: torch.Tensor, trains_whitening: bool = False) -> torch.Tensor:
        bias = self.whiten.bias if trains_whitening else self.whiten.bias.detach()
        x = F.gelu(F.conv2d(x, self.whiten.weight, bias))
        x = F.max_pool2d(self.groups(x), 3).flatten(1)
        return self.head(x) / x.size(-1)


def whitening(images: torch.Tensor, size: int = 2, epsilon: float = 5e-4) -> torch.Tensor:
    """Return kernels [24, 3, 2, 2] that make the patches of ``images`` uncorrelated, and their negatives."""
    patches = images.unfold(2, size, 1).unfold(3, size, 1).transpose(1, 3).reshape(-1, 3 * size * size)
    values, vectors = torch.linalg.eigh(patches.T @ patches / len(patches), UPLO="U")
    kernels = vectors.T.reshape(-1, 3, size, size) / torch.sqrt(values + epsilon).view(-1, 1, 1, 1)
    return torch.cat((kernels, -kernels))


def orthogonalized(gradient: torch.Tensor) -> torch.Tensor:
    """Return the nearly orthogonal matrix of ``gradient`` by three Newton-Schulz steps in bfloat16."""
    a, b, c = 3.4445, -4.7750, 2.0315
    x = gradient.bfloat16()
    x = x / (x.norm() + 1e-7)
    tall = x.size(0) > x.size(1)
    x = x.T if tall else x
    for _ in range(3):
        square = x @ x.T
        x = a * x + (b * square + c * square @ square) @ x
    return x.T if tall else x


class Muon(torch.optim.Optimizer):
    """Momentum whose updates are orthogonalized, on weights that keep their norm."""

    def __init__(self, weights: list[nn.Parameter], rate: float, momentum: float) -> None:
        super().__init__(weights, {"lr": rate, "momentum": momentum})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        [group] = self.param_groups
        for weight in group["params"]:
            velocity = self.state[weight].setdefault("velocity", torch.zeros_like(weight))
            velocity.mul_(group["momentum"]).add_(weight.grad)
            gradient = weight.grad.add(velocity, alpha=group["momentum"])
            weight.mul_(len(weight) ** 0.5 / weight.norm())
            update = orthogonalized(gradient.reshape(len(gradient), -1)).view(gradient.shape)
            weight.add_(update, alpha=-group["lr"])


def airbench94_muon(arrays: Any, options: argparse.Namespace) -> Training:
    batch_size, epochs, whitening_epochs = 2000, 8, 3
    per_epoch = len(arrays["labels"]) // batch_size
    steps, whitening_steps = epochs * per_epoch, whitening_epochs * per_epoch
    images = standardizer(arrays)(torch.from_numpy(arrays["images"][:5000]))
    model = FastNet(int(arrays["labels"].max()) + 1, images).to(memory_format=torch.channels_last)
    bias_rate, head_rate, decay = 0.053, 0.67, 2e-6 * batch_size
    norms = [weight for name, weight in model.named_parameters() if "norm" in name and weight.requires_grad]
    groups = [
        {"params": [model.whiten.bias], "lr": bias_rate, "weight_decay": decay / bias_rate},
        {"params": norms, "lr": bias_rate, "weight_decay": decay / bias_rate},
        {"params": [model.head.weight], "lr": head_rate, "weight_decay": decay / head_rate},
    ]
    sgd = torch.optim.SGD(groups, lr=bias_rate, momentum=0.85, nesterov=True, fused=True)
    filters = [weight for weight in model.parameters() if weight.ndim == 4 and weight.requires_grad]
    muon = Muon(filters, 0.24, momentum=0.6)
    falling = [(group, group["lr"]) for group in [*sgd.param_groups[1:], *muon.param_groups]]

    def loss(images: torch.Tensor, labels: torch.Tensor, trains_whitening: bool) -> torch.Tensor:
        with autocast(options.precision):
            logits = model(images, trains_whitening)
        return F.cross_entropy(logits.float(), labels, label_smoothing=0.2, reduction="sum")

    compute = torch.compile(loss, dynamic=False) if options.form == "compile" else loss

    def step(images: torch.Tensor, labels: torch.Tensor, index: int) -> None:
        compute(images, labels, index < whitening_steps).backward()
        sgd.param_groups[0]["lr"] = bias_rate * (1 - index / whitening_steps)
        for group, rate in falling:
            group["lr"] = rate * (1 - index / steps)
        sgd.step()
        muon.step()
        model.zero_grad(set_to_none=True)

    return Training(
        model,
        [sgd, muon],
        step,
        steps,
        warmup=(0, 0, whitening_steps, whitening_steps),
        batch_size=batch_size,
        augmentation={"padding": 2, "mode": "reflect", "alternating": True},
    )


# ---- ResNet-20 ------------------------------------------------------------------------------------------


def resnet20(arrays: Any, options: argparse.Namespace) -> Training:
    values = preset_values("resnet20_one_cycle")
    config = Config.from_flat({**values, "dataset": "cifar10", "num_gpus": 0})
    batch_size, epochs = config.data.train_batch_size, 12
    per_epoch = len(arrays["labels"]) / batch_size
    steps = round(epochs * per_epoch)
    model = ResNet(values["num_layers"], int(arrays["labels"].max()) + 1)
    model = model.to(memory_format=torch.channels_last)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = 1 - values["batch_norm_decay"]
    kernels = [weight for weight in model.parameters() if weight.ndim > 1]
    others = [weight for weight in model.parameters() if weight.ndim == 1]
    groups = [{"params": kernels, "weight_decay": values["weight_decay"]}, {"params": others}]
    momentum = config.optimizer.momentum
    sgd = torch.optim.SGD(groups, lr=values["learning_rate"], momentum=momentum, nesterov=True, fused=True)

    loss = make_loss(model, options.precision)
    compute = torch.compile(loss, dynamic=False) if options.form == "compile" else loss

    def step(images: torch.Tensor, labels: torch.Tensor, index: int) -> None:
        rate = learning_rate_at(index, config.optimizer, total_steps=steps, steps_per_epoch=per_epoch)
        for group in sgd.param_groups:
            group["lr"] = rate
        sgd.zero_grad(set_to_none=True)
        compute(images, labels).backward()
        sgd.step()

    return Training(model, [sgd], step, steps, warmup=(0, 0), batch_size=batch_size)


RECIPES: dict[str, Callable[[Any, argparse.Namespace], Training]] = {
    "airbench94_muon": airbench94_muon,
    "resnet20": resnet20,
}


# ---- training and testing -------------------------------------------------------------------------------


def warm_up(training: Training, arrays: Any, images: int | None = None) -> None:
    """Compile, and forget what the weights learned by that. ``images``: of a batch, if not all."""
    weights = copy.deepcopy(training.model.state_dict())
    for index, (shown, labels) in zip(training.warmup, training.batches(arrays), strict=False):
        training.step(shown[:images], labels[:images], index)
    training.model.load_state_dict(weights)
    for optimizer in training.optimizers:
        optimizer.state.clear()


def accuracies(
    model: nn.Module, arrays: Any, precision: str, *, with_views: bool
) -> tuple[float, float | None]:
    """Return the accuracy on whole images, plain and over six views (arXiv:2404.00498, section 3.5)."""
    standardize, right, right_by_views = standardizer(arrays), 0, 0
    labels = torch.from_numpy(arrays["labels"].astype(np.int64))
    model.eval()

    def mirrored(images: torch.Tensor) -> torch.Tensor:
        return (model(images).float() + model(images.flip(-1)).float()) / 2

    with torch.inference_mode(), autocast(precision):
        batched = torch.from_numpy(arrays["images"]).split(EVAL_BATCH)
        for images, wanted in zip(batched, labels.split(EVAL_BATCH), strict=True):
            shown = standardize(images)
            plain = model(shown).float()
            right += int((plain.argmax(1) == wanted).sum())
            if not with_views:
                continue
            height, width = shown.shape[2:]
            padded = F.pad(shown, (1, 1, 1, 1), "reflect")
            shifted = [padded[:, :, :height, :width], padded[:, :, 2:, 2:]]
            six = (mirrored(shown) + sum(map(mirrored, shifted)) / 2) / 2
            right_by_views += int((six.argmax(1) == wanted).sum())
    model.train()
    return right / len(labels), right_by_views / len(labels) if with_views else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe", choices=RECIPES)
    parser.add_argument("--arrays", type=Path, required=True, help="training split, by common.write_arrays")
    parser.add_argument("--test-arrays", type=Path, help="test split; without it, only the speed is measured")
    parser.add_argument("--precision", choices=PRECISIONS, default="float32")
    parser.add_argument("--form", choices=("eager", "compile"), default="eager")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int, help="end after so many steps (default: the whole training)")
    parser.add_argument("--output", type=Path, required=True, help="JSON file of the result")
    options = parser.parse_args()
    torch.manual_seed(options.seed)
    torch.set_flush_denormal(True)  # as TensorFlow does
    arrays = dict(np.load(options.arrays))
    test = dict(np.load(options.test_arrays)) if options.test_arrays else None
    training = RECIPES[options.recipe](arrays, options)
    warm_up(training, arrays)
    steps = min(training.steps, options.steps or training.steps)
    every = max(1, training.steps // 12)
    seconds, curve = 0.0, []
    source = training.batches(arrays)
    for index in range(steps):
        started = time.perf_counter()
        training.step(*next(source), index)
        seconds += time.perf_counter() - started
        if test is not None and ((index + 1) % every == 0 or index + 1 == steps):
            last = index + 1 == steps
            plain, six = accuracies(training.model, test, options.precision, with_views=last)
            curve.append([seconds, plain])
            print(f"step {index + 1} of {steps}, {seconds:.0f} s: {plain:.4f}, six views {six}", flush=True)
    result = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "seconds": seconds,
        "images_per_second": steps * training.batch_size / seconds,
        "curve": curve,
    }
    if test is not None:
        result |= {"accuracy": plain, "tta_accuracy": six}
    write_json_atomic(options.output, result)


if __name__ == "__main__":
    main()
