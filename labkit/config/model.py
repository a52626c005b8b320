"""Which network a run trains."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from labkit.config.architectures import (
    APPLICATIONS,
    ARCHITECTURES,
    default_depth,
    larger_relative,
    parse_model_name,
    resolved_depth,
)
from labkit.config.fields import FieldOwner, fields_of, option
from labkit.errors import InputError

__all__ = ["ModelConfig"]


@dataclass(frozen=True)
class ModelConfig(FieldOwner):
    """Which network."""

    model: str = option(
        "resnet", "Architecture; labkit models shows them.", choices=tuple(ARCHITECTURES), common=True
    )
    num_layers: int | None = option(
        None,
        "Depth of the network. A resnet has 6n+2 layers, with bottleneck blocks 9n+2.",
        unset=", ".join(
            f"{name} {default_depth(name, 'basic')}" for name in ARCHITECTURES if name != "keras_application"
        ),
        minimum=1,
        common=True,
    )
    width_factor: float = option(
        1.0,
        "Multiplies the channels of wide_resnet and fast; WRN-16-4 has 4.",
        minimum=0.125,
        below=100,
    )
    activation: str = option(
        "relu",
        "Activation function of --model fast. The other architectures use the published one.",
        choices=("relu", "silu", "gelu"),
    )
    whitening: bool = option(
        True, "Makes the first convolution of --model fast whiten the images, with frozen weights."
    )
    dirac: bool = option(True, "Initializes the convolutions of --model fast as the identity.")
    application: str = option(
        APPLICATIONS[0],
        "Network of keras.applications to train with --model keras_application.",
        choices=APPLICATIONS,
    )
    resnet_version: int = option(
        1,
        "Order within a resnet's block: 1 applies the activation after the sum, 2 before the convolutions.",
        choices=(1, 2),
    )
    block: str = option("basic", "Residual block of a resnet.", choices=("basic", "bottleneck"))
    batch_norm_decay: float | None = option(
        None,
        "Fraction of the old moving mean and variance that batch normalization keeps at each step.",
        unset="0.997, and at most (1 + n) / (10 + n) after n steps",
        minimum=0,
        below=1,
    )
    batch_norm_epsilon: float = option(1e-5, "Added to the variance in batch normalization.", minimum=1e-12)
    sync_batch_norm: bool = option(False, "Normalizes over the global batch instead of each replica's part.")
    dropout_rate: float = option(
        0.0,
        "Fraction of the features before the logits that each training step sets to zero, at random; with "
        "imagenet_vgg behind both dense layers, where the paper has 0.5.",
        minimum=0,
        below=1,
    )
    data_format: str = option(
        "auto",
        "Layout of the images on the device. auto takes channels_first on GPUs and channels_last on CPUs.",
        choices=("auto", "channels_last", "channels_first"),
        identity=False,
    )
    precision: str = option(
        "float32",
        "Number format of the network. float64 is slow and shows the effect of rounding.",
        choices=("float32", "mixed_bfloat16", "float64"),
    )

    def __post_init__(self) -> None:
        self._refuse_network_name()
        super().__post_init__()
        depth = resolved_depth(
            self.model,
            self.num_layers,
            resnet_version=self.resnet_version,
            block=self.block,
            width_factor=self.width_factor,
        )
        for owner, names in {
            "fast": ("activation", "whitening", "dirac"),
            "keras_application": ("application",),
        }.items():
            if self.model != owner:
                self.require_defaults(names, f"for {self.model}", f"only {owner} uses it")
        object.__setattr__(self, "num_layers", depth)  # so that what is recorded is the number

    def _refuse_network_name(self) -> None:
        """Raise InputError, with the flags to write, where ``model`` is a network's name, such as vgg11."""
        if not isinstance(self.model, str) or self.model in ARCHITECTURES:
            return
        names = (self.model, larger_relative(self.model) or "")
        flags = [flags for name in names if (flags := _flags(name))]
        if flags:
            write = " or, for larger images, ".join(flags)
            raise InputError(f"--model is {self.model!r}, more than an architecture; write {write}")

    @property
    def norm_decay(self) -> float:
        """The decay of batch normalization's averages; 0.997, that of cifar10_estimator, if none is given."""
        return 0.997 if self.batch_norm_decay is None else self.batch_norm_decay

    @property
    def depth(self) -> int:
        """The number of layers; ``num_layers`` is never None once this is made."""
        assert self.num_layers is not None
        return self.num_layers

    def with_own_depth(self, changes: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return ``changes`` to this, with a depth that is the architecture's own left to the next one."""
        if "num_layers" in changes or self.num_layers != default_depth(self.model, self.block):
            return changes
        return {**changes, "num_layers": None}


def _flags(name: str) -> str:
    """Return the flags that stand for a network's name, such as vgg11; "" for another name."""
    try:
        named = parse_model_name(name)
    except InputError:
        return ""
    architecture = named["model"]
    if architecture == "keras_application" or ARCHITECTURES[architecture].has_one_depth:
        del named["num_layers"]
    flags = [
        f"{info.flag} {named[info.name]}".removesuffix(".0")
        for info in fields_of(ModelConfig)
        if info.name == "model" or named.get(info.name, info.default) != info.default
    ]
    return " ".join(flags)
