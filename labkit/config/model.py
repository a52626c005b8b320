"""Which network a run trains, and the weights that it begins with."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from labkit.config.architectures import (
    APPLICATIONS,
    ARCHITECTURES,
    architecture_of,
    default_depth,
    larger_relative,
    misspelled,
    parse_model_name,
    resolved_depth,
)
from labkit.config.fields import CODE, OF_THE_NETWORK, FieldOwner, fields_of, option
from labkit.errors import InputError


def _taken_by_model(field: str) -> tuple[str, ...]:
    """Return the flag ``model`` and the architectures that take a field."""
    return "model", *(name for name, architecture in ARCHITECTURES.items() if field in architecture.takes)


@dataclass(frozen=True)
class ModelConfig(FieldOwner):
    """Which network."""

    model: str = option(
        "resnet",
        "Network, such as resnet20 or vgg11 (labkit models lists them), or an architecture, whose depth "
        "--num-layers chooses. FILE.py:NAME is a function of your own, NAME(input_shape, num_classes), that "
        "returns a Keras model; FILE.keras is a saved one.",
        choices=tuple(ARCHITECTURES),
        is_code=True,
        may_be_saved=True,
        acts="run",
        common=True,
        fork=OF_THE_NETWORK,
    )
    model_arguments: str | None = option(
        None,
        "Further arguments of your own --model, such as width=64,activation='gelu'.",
        of_code="model",
        unset="none",
        fork=OF_THE_NETWORK,
    )
    num_layers: int | None = option(
        None,
        "Depth of the network. A resnet has 6n+2 layers, with bottleneck blocks 9n+2.",
        unset=", ".join(
            f"{name} {default_depth(name, 'basic')}" for name in ARCHITECTURES if name != "keras_application"
        ),
        minimum=1,
        common=True,
        fork=OF_THE_NETWORK,
    )
    width_factor: float = option(
        1.0,
        "Multiplies the channels of wide_resnet, fast and fast_residual; WRN-16-4 has 4.",
        minimum=0.125,
        below=100,
        only_with=_taken_by_model("width_factor"),
        fork=OF_THE_NETWORK,
    )
    activation: str = option(
        "relu",
        "Activation function of fast and fast_residual. The other architectures use the published one.",
        choices=("relu", "silu", "gelu"),
        fork=OF_THE_NETWORK,
        only_with=_taken_by_model("activation"),
    )
    whitening: bool = option(
        True,
        "Makes the first convolution of fast and fast_residual whiten the images, with frozen weights.",
        fork=OF_THE_NETWORK,
        only_with=_taken_by_model("whitening"),
    )
    dirac: bool = option(
        True,
        "Initializes the convolutions of --model fast and fast_residual as the identity.",
        fork=OF_THE_NETWORK,
        only_with=_taken_by_model("dirac"),
    )
    application: str = option(
        APPLICATIONS[0],
        "Network of keras.applications to train with --model keras_application.",
        choices=APPLICATIONS,
        fork=OF_THE_NETWORK,
        only_with=_taken_by_model("application"),
    )
    resnet_version: int = option(
        1,
        "Order within a resnet's block: 1 applies the activation after the sum, 2 before the convolutions.",
        choices=(1, 2),
        only_with=_taken_by_model("resnet_version"),
        fork=OF_THE_NETWORK,
    )
    block: str = option(
        "basic",
        "Residual block of a resnet.",
        choices=("basic", "bottleneck"),
        only_with=_taken_by_model("block"),
        fork=OF_THE_NETWORK,
    )
    bottleneck_stride: str = option(
        "first",
        "Convolution of a bottleneck that halves the image, in imagenet_resnet and imagenet_se_resnet: the "
        "first as in the paper and in keras.applications, or the second as in torchvision (v1.5).",
        choices=("first", "second"),
        only_with=_taken_by_model("bottleneck_stride"),
        fork=OF_THE_NETWORK,
    )
    batch_norm_decay: float | None = option(
        None,
        "Fraction of the old moving mean and variance that batch normalization keeps at each step.",
        unset="0.997, and at most (1 + n) / (10 + n) after n steps",
        minimum=0,
        below=1,
    )
    batch_norm_epsilon: float = option(
        1e-5, "Added to the variance of a batch; keras_application keeps Keras's.", minimum=1e-12
    )
    sync_batch_norm: bool = option(
        False, "Normalizes over the global batch instead of each replica's part.", synchronous=True
    )
    dropout_rate: float = option(
        0.0,
        "Fraction of the features before the logits that each training step sets to zero, at random; with "
        "imagenet_alexnet and imagenet_vgg behind both dense layers, where the papers have 0.5.",
        minimum=0,
        below=1,
    )
    data_format: str = option(
        "auto",
        "Layout of the images on the device. auto takes channels_first on GPUs and channels_last on CPUs.",
        choices=("auto", "channels_last", "channels_first"),
        role="measurement",
    )
    precision: str = option(
        "float32",
        "Number format of the network. float64 is slow and shows the effect of rounding. auto measures if "
        "bfloat16 is faster on this CPU; the run records what was chosen.",
        choices=("float32", "mixed_bfloat16", "float64"),
        measured=True,
    )

    def __post_init__(self) -> None:
        self._refuse_network_name()
        super().__post_init__()
        if self.model_arguments and self.model in ARCHITECTURES:
            raise InputError(
                f"--model-arguments is {self.model_arguments!r} with --model {self.model}; it needs a "
                "network of your own, --model FILE.py:NAME"
            )
        depth = resolved_depth(self.model, self.num_layers, self.block)
        object.__setattr__(self, "num_layers", depth)  # so that what is recorded is the number
        if self.bottleneck_stride != "first" and not self.has_bottlenecks:
            raise InputError(
                f"--bottleneck-stride is {self.bottleneck_stride!r} with --num-layers {depth}, which has no "
                "bottlenecks; leave it out"
            )

    def _refuse_network_name(self) -> None:
        """Raise InputError, with what to write, for the name of two networks (resnet50), or of nearly one."""
        larger = larger_relative(self.model) if isinstance(self.model, str) else None
        if larger is not None:
            small = _flags(self.model)
            write = f"{small} for small images or --model {larger}" if small else f"--model {larger}"
            raise InputError(f"--model is {self.model!r}; write {write} for larger images")
        if reason := misspelled(self.model):
            raise InputError(f"--model: {reason.removeprefix('model ')}")

    @property
    def norm_decay(self) -> float:
        """The decay of batch normalization's averages; 0.997, that of cifar10_estimator, if none is given."""
        return 0.997 if self.batch_norm_decay is None else self.batch_norm_decay

    @property
    def depth(self) -> int:
        """The number of layers; ``num_layers`` is never None once this is made."""
        assert self.num_layers is not None
        return self.num_layers

    @property
    def has_bottlenecks(self) -> bool:
        """Whether this is a network published for ImageNet whose blocks are bottlenecks."""
        first = architecture_of(self.model).bottlenecks_from
        return first is not None and self.depth >= first

    def with_own_depth(self, changes: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return ``changes`` to this, with a depth that is the architecture's own left to the next one."""
        if "num_layers" in changes or self.num_layers != default_depth(self.model, self.block):
            return changes
        return {**changes, "num_layers": None}


def fields_of_network(name: Any) -> dict[str, Any]:
    """Return the values of fields that a network's name stands for, such as resnet20; none for another name.

    It is none, too, for resnet50 and its like: most people mean the network for larger images by them.
    """
    if not isinstance(name, str) or name in ARCHITECTURES or CODE.fullmatch(name):
        return {}
    try:
        named = parse_model_name(name)
    except InputError:  # ModelConfig says what is allowed
        return {}
    is_unclear = larger_relative(name) is not None and architecture_of(named["model"]).has_residual_variants
    return {} if is_unclear else named


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


@dataclass(frozen=True)
class TransferConfig(FieldOwner):
    """Initial weights and frozen layers."""

    start_from: str | None = option(
        None,
        "Takes initial weights from a run's best checkpoint, from a file (.keras, .weights.h5, .safetensors, "
        "also of PyTorch), or from imagenet (for keras_application, imagenet_resnet and imagenet_vgg). "
        "Weights whose name or shape doesn't fit stay random.",
        unset="random weights",
        is_path=True,
        fork="a fork starts from its parent",
    )
    name_map: str | None = option(
        None,
        "File that says which weights or layers of --start-from are which of the network: a JSON object, or "
        "lines of two names, the source's and the network's.",
        unset="names, else order and shape",
        is_path=True,
        fork="a fork starts from its parent",
    )
    freeze: str | None = option(
        None,
        "Stages or layers to hold fixed, statistics included: names or patterns, separated by commas, such "
        "as stem,stage1 or 'stage*_norm*'. A layer's own name means this layer alone.",
        unset="everything is trained",
    )
    unfreeze_every_steps: int = option(
        0, "Steps after which the topmost frozen stage is unfrozen, repeatedly. 0 unfreezes none.", minimum=0
    )
    head_learning_rate_factor: float = option(
        1.0, "Multiplies the learning rate of the layer that gives the logits.", minimum=0
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.freeze is not None and not all(self.freeze_patterns):
            raise InputError(
                f"--freeze is {self.freeze!r}; allowed: names or patterns, comma-separated, none empty"
            )
        if self.name_map is not None and self.start_from is None:
            raise InputError(
                f"--name-map is {self.name_map!r} without --start-from; name the weights with that"
            )
        if self.unfreeze_every_steps and self.freeze is None:
            raise InputError(
                f"--unfreeze-every-steps is {self.unfreeze_every_steps} without --freeze, so no layer is "
                "frozen; name some, for example --freeze 'stem,stage*'"
            )

    @property
    def freeze_patterns(self) -> list[str]:
        """The patterns of ``freeze``, one by one."""
        return [] if self.freeze is None else [part.strip() for part in self.freeze.split(",")]
