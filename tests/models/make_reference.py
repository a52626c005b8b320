"""Make ``reference/*.npz``: what PyTorch computes with the weights of ``reference_weights``.

Needs torch, torchvision and numpy alone: ``python -m tests.models.make_reference`` in the top folder.
"""

import functools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from tests.models import torch_reference as reference
from tests.models.reference_weights import CHAIN, batch, pytorch_weights, sampled, torchvision_weights

__all__ = ["FOLDER", "NETWORKS", "logits", "taken", "training"]

FOLDER = Path(__file__).parent / "reference"

_net = functools.partial(reference.ResidualNet, blocks=1)
NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "resnet8": _net,
    "resnet8-v2": functools.partial(_net, version=2),
    "resnet11-bottleneck": functools.partial(_net, bottleneck=True),
    "resnet11-v2-bottleneck": functools.partial(_net, version=2, bottleneck=True),
    "se_resnet8": functools.partial(_net, squeeze=True),
    "se_resnet11-v2-bottleneck": functools.partial(_net, version=2, bottleneck=True, squeeze=True),
    "wide_resnet10_2": functools.partial(_net, version=2, widths=(32, 64, 128), project=True),
    "vgg11": functools.partial(reference.vgg, "64 M 128 M 256 256 M 512 512 M 512 512 M"),
    "tutorial_cnn": reference.TutorialCNN,
    "fast_0.25": functools.partial(reference.FastNet, (16, 64, 64), functional.gelu),
    "fast_0.5": functools.partial(reference.FastNet, (32, 128, 128), functional.silu),
    "fast_residual_0.25": functools.partial(reference.FastNet, (16, 64, 64), functional.gelu, depth=3),
    "lenet": reference.lenet,
}


def logits(name: str) -> np.ndarray:
    """Return the logits float32 [2, 10] of a network of ``NETWORKS``."""
    network = reference.load_weights(NETWORKS[name]()).eval()
    images, _ = batch(0, 2)
    with torch.inference_mode():
        return network(torch.tensor(images.transpose(0, 3, 1, 2))).numpy()


def training() -> dict[str, np.ndarray]:
    """Return the losses of three steps of SGD of a ResNet-14, and samples of how far each weight moved.

    Momentum, Nesterov's, and PyTorch's decay of all weights, which is added to the gradient.
    """
    network = reference.load_weights(reference.ResidualNet(blocks=2)).train()
    before = reference.weights_by_place(network)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05, momentum=0.9, nesterov=True, weight_decay=2e-3)
    losses = []
    for number in range(3):
        images, labels = batch(number, 16)
        optimizer.zero_grad()
        shown = network(torch.tensor(images.transpose(0, 3, 1, 2)))
        loss = functional.cross_entropy(shown, torch.tensor(labels, dtype=torch.int64))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    after = reference.weights_by_place(network)
    moved = {place: sampled(after[place] - before[place]) for place in before}
    return {"losses": np.array(losses, np.float32), **moved}


def taken() -> dict[str, np.ndarray]:
    """Return the logits float32 [2, 10] of networks whose weights labkit takes from their state_dict."""
    import torchvision  # which make peers doesn't install

    chain = nn.Sequential(
        nn.Conv2d(3, 6, 5), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 12, 3, groups=6), nn.ReLU(),
        nn.MaxPool2d(4), nn.Flatten(), nn.BatchNorm1d(432), nn.Linear(432, 432), nn.ReLU(),
        nn.Linear(432, 432), nn.ReLU(), nn.Linear(432, 10),
    )  # fmt: skip
    made = {"chain": (chain, pytorch_weights(CHAIN))}
    for depth in (18, 50):
        network = getattr(torchvision.models, f"resnet{depth}")(num_classes=10)
        made[f"resnet{depth}"] = network, torchvision_weights(depth)
    images, found = torch.tensor(batch(0, 2)[0].transpose(0, 3, 1, 2)), {}
    for name, (network, weights) in made.items():
        left = network.load_state_dict(
            {key: torch.tensor(array) for key, array in weights.items()}, strict=False
        )
        assert not left.unexpected_keys and all("num_batches" in key for key in left.missing_keys)
        with torch.inference_mode():
            found[name] = network.eval()(images).numpy()
    return found


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    np.savez_compressed(FOLDER / "logits.npz", **{name: logits(name) for name in NETWORKS})
    np.savez_compressed(FOLDER / "taken.npz", **taken())
    np.savez_compressed(FOLDER / "training.npz", **training())
    print(f"made with PyTorch {torch.__version__}: {', '.join(path.name for path in FOLDER.glob('*.npz'))}")


if __name__ == "__main__":
    main()
