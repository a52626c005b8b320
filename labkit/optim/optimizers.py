"""labkit's optimizers, SGD with momentum, with Muon for the kernels of convolutions, and AdamW; and any
optimizer of Keras, or of a class of one's own, inside labkit's step.

Muon: Jordan et al., "Muon: An optimizer for hidden layers in neural networks" (2024),
https://kellerjordan.github.io/posts/muon/, in the variant of airbench's CIFAR-10 record
(``airbench94_muon.py``). In this variant each update first rescales the kernel to a fixed norm, so the
learning rate alone decides the relative size of the update.

An optimizer of Keras gets the gradient of the global batch, which labkit has summed, clipped and given its
weight decay, and the learning rate of the step. What it remembers is in checkpoints, as for labkit's own.
"""

import inspect
import math
from collections.abc import Collection, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from labkit.config import OptimizerConfig
from labkit.config.fields import arguments_of
from labkit.config.optimizer import KERAS_OPTIMIZERS, LABKITS, LEFT_TO_LABKIT
from labkit.errors import InputError, short
from labkit.models.freezing import layers_with_weights, stages
from labkit.models.layers import BatchNormalization
from labkit.optim.optimizer import Optimizer
from labkit.parts.code import first_line, named_object
from labkit.startup.tf_compat import update_by_keras

# The quintic iteration with the steepest slope at zero. The singular values do not converge to 1 but end
# between about 0.7 and 1.2, which works as well (ibid.).
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 3  # airbench94_muon
NORMS = (BatchNormalization, keras.layers.BatchNormalization)


def muon_kernels(model: keras.Model) -> list[keras.Variable]:
    """Return the trained kernels that Muon updates: those of convolutions without a bias.

    In labkit's networks these are the convolutions followed by a normalization (in a ResNet v2, after the sum
    of the block). Muon sets a kernel's norm, which has no effect only if a normalization follows. Depthwise
    convolutions are excluded: each of their filters uses one channel, so their kernels are not matrices.
    """
    return [
        layer.kernel
        for layer in layers_with_weights(model)
        if isinstance(layer, keras.layers.Conv2D)
        and not isinstance(layer, keras.layers.DepthwiseConv2D)
        and not layer.use_bias
        and layer.kernel.trainable
    ]


def check_muon(model: keras.Model, frozen: Collection[str]) -> None:
    """Check that Muon can train the network.

    Args:
        model: the network.
        frozen: names of layers that aren't trained (``Freezing.at``).

    Raises:
        InputError: there is no kernel for Muon, or a normalization is frozen while Muon updates its stage.
    """
    kernels = {id(kernel) for kernel in muon_kernels(model)}
    if not kernels:
        raise InputError(
            "--optimizer muon (the recipe auto takes it where no optimizer is given) trains convolutions "
            f"without a bias that a normalization follows; {model.name} has none; choose --optimizer sgd or "
            "adam"
        )
    for stage, layers in stages(model).items():
        norms = [layer.name for layer in layers if isinstance(layer, NORMS)]
        trained = [layer for layer in layers if layer.name not in frozen]
        if any(name in frozen for name in norms) and any(
            id(weight) in kernels for layer in trained for weight in layer.trainable_variables
        ):
            raise InputError(
                f"--freeze names a normalization of {stage} but not its convolutions, whose norms "
                "--optimizer muon changes; freeze the whole stage, or choose --optimizer sgd"
            )


def orthogonalized(matrix: tf.Tensor, iterations: int = ITERATIONS) -> tf.Tensor:
    """Return approximately the nearest matrix with orthonormal rows or columns.

    The Newton-Schulz iteration, which moves all singular values of ``matrix`` towards 1.

    Args:
        matrix: float [m, n] with static shape.
        iterations: number of iterations.

    Returns:
        A matrix of the same shape and dtype.
    """
    a, b, c = COEFFICIENTS
    is_tall = matrix.shape[0] > matrix.shape[1]
    x = tf.transpose(matrix) if is_tall else matrix  # makes x x^T the smaller of the two products
    x /= tf.norm(x) + 1e-7
    for _ in range(iterations):
        gram = tf.matmul(x, x, transpose_b=True)
        x = a * x + tf.matmul(b * gram + c * tf.matmul(gram, gram), x)
    return tf.transpose(x) if is_tall else x


def update_kernel(variable, velocity, gradient, learning_rate, momentum: float):
    """Update a convolution's kernel and its velocity, and return the operation.

    With gradient g, velocity v and weight w of k filters::

        v = m v + g;  w = w sqrt(k) / |w| - r orthogonalized(g + m v)

    Args:
        variable: float [height, width, channels, k].
        velocity: variable of the same shape.
        gradient: tensor of the same shape.
        learning_rate: scalar.
        momentum: m.
    """
    filters = variable.shape[-1]
    norm = tf.maximum(tf.norm(variable), 1e-12)  # a kernel may be initialized to zero
    velocity = velocity.assign(momentum * velocity + gradient)
    nesterov = tf.reshape(gradient + momentum * velocity, [-1, filters])
    direction = tf.reshape(orthogonalized(nesterov), variable.shape)
    return variable.assign(variable * (filters**0.5 / norm) - learning_rate * direction)


class KerasOptimizer(Optimizer):
    """Updates weights as ``keras.optimizers.Optimizer.apply`` does.

    Keras counts updates once for all weights, so the count goes on for those that are frozen. Arguments, and
    what differs for some weights: see ``Optimizer``.

    Raises InputError if the optimizer can't be made of the configuration.
    """

    def __init__(self, model: keras.Model, config: OptimizerConfig, head_factor: float = 1.0) -> None:
        super().__init__(model, config, head_factor, "keras_optimizer")
        self._make = lambda: _built(config, model.trainable_variables)
        optimizer = self._make()
        # In a function: as an attribute, checkpoints would hold its variables a second time.
        self._kept = lambda: optimizer
        self.remembered = _remembered(optimizer)

    @property
    def slots(self) -> dict[str, list[tf.Variable]]:
        """None: what it remembers of which weight only the optimizer knows."""
        return {}

    @property
    def counters(self) -> list[tf.Variable]:
        """All that it remembers."""
        return list(self.remembered)

    def begin(self) -> None:
        """Start anew, from the weights as they are: some optimizers begin with a copy of them."""
        for variable, value in zip(self.remembered, _remembered(self._make()), strict=True):
            variable.assign(tf.convert_to_tensor(value))

    def apply(
        self, strategy, gradients, learning_rate: tf.Tensor, indices: Sequence[int] | None = None
    ) -> list[Any]:
        """Update the weights as ``Optimizer.apply`` does. The operations aren't returned."""
        indices = range(len(self._variables)) if indices is None else indices
        optimizer = self._kept()
        with tf.name_scope("optimizer"):
            scale = self._clip_factor(strategy, gradients)

            def update_each(gradients, variables, learning_rate):
                for index, variable, gradient in zip(indices, variables, gradients, strict=True):
                    arguments = ((), (), gradient, learning_rate, scale, index)
                    strategy.extended.update(variable, self._update, args=arguments, group=False)

            variables = [self._variables[index] for index in indices]
            optimizer.learning_rate.assign(learning_rate)  # for classes of one's own that read it there
            update_by_keras(optimizer, gradients, variables, learning_rate, update_each)
            optimizer.iterations.assign_add(1)
        return []

    def _step(self, variable, slots, counters, gradient, learning_rate, index: int):
        self._kept().update_step(gradient, variable, learning_rate)


def _remembered(optimizer: keras.optimizers.Optimizer) -> list[tf.Variable]:
    """Return the variables that updates change; the learning rate is the step's."""
    return [variable.value for variable in optimizer.variables if variable is not optimizer.learning_rate]


def check_keras_optimizer(config: OptimizerConfig) -> None:
    """Raise InputError if the configuration's optimizer of Keras can't be made, or can't make an update.

    Call it outside of a strategy's scope, before a training writes anything.
    """
    if config.optimizer in LABKITS:
        return
    weights = [keras.Variable(tf.ones(shape), name="tried") for shape in ([3, 2], [2])]
    optimizer, made = _built(config, weights), list[tf.Variable]()  # the file may make variables for others

    def creator(create: Any, **options: Any) -> tf.Variable:
        made.append(create(**options))
        return made[-1]

    try:
        with tf.variable_creator_scope(creator):
            optimizer = _built(config, weights)
            for weight in weights:
                optimizer.update_step(tf.ones(weight.shape), weight.value, tf.constant(1e-3))
    except Exception as error:
        raise InputError(
            f"--optimizer {config.optimizer} can't make an update: {first_line(error)}; its arguments are "
            f"{config.optimizer_arguments or 'those of its own'}"
        ) from None
    if {id(one) for one in made} - {id(variable.value) for variable in optimizer.variables}:
        raise InputError(
            f"--optimizer {config.optimizer} makes variables that Keras doesn't know of, so checkpoints "
            "would leave them out; make them in build with self.add_variable"
        )


def _built(config: OptimizerConfig, weights: list[keras.Variable]) -> keras.optimizers.Optimizer:
    """Return the configuration's optimizer for some weights. Raises InputError."""
    flag, arguments = f"--optimizer {config.optimizer}", arguments_of(config.optimizer_arguments)
    if config.optimizer in KERAS_OPTIMIZERS:
        make = getattr(keras.optimizers, KERAS_OPTIMIZERS[config.optimizer])
        arguments = {"weight_decay": None} | arguments
    else:
        make = named_object("--optimizer", config.optimizer)
    if not callable(make):
        raise InputError(f"{flag} is {short(make)}; allowed: a class of optimizers, or a function")
    try:
        parameters = inspect.signature(make).parameters.values()
        if any(one.name == "learning_rate" or one.kind == one.VAR_KEYWORD for one in parameters):
            arguments = {"learning_rate": config.learning_rate} | arguments
        optimizer = make(**arguments)
        _check(flag, optimizer, config)
        optimizer.build(weights)
    except InputError:
        raise
    except Exception as error:
        given = ", ".join(f"{name}={value!r}" for name, value in arguments.items())
        raise InputError(f"{flag} failed, called with ({given}): {first_line(error)}") from None
    return optimizer


def _check(flag: str, optimizer: Any, config: OptimizerConfig) -> None:
    """Raise InputError for what is no optimizer, and for one with something that labkit does instead."""
    wrappers = (keras.optimizers.LossScaleOptimizer, keras.optimizers.MultiOptimizer)
    if not isinstance(optimizer, keras.optimizers.Optimizer) or isinstance(optimizer, wrappers):
        kind = "nothing" if optimizer is None else f"an object of {type(optimizer).__name__}"
        raise InputError(f"{flag} returned {kind}; allowed: a Keras optimizer that wraps no others")
    for name, instead in LEFT_TO_LABKIT.items():
        if (value := getattr(optimizer, name)) not in (None, False):
            raise InputError(f"{flag} has {name}={value!r}, which labkit does instead; {instead}")
    for own in ("apply", "apply_gradients", "_get_current_learning_rate"):
        if getattr(type(optimizer), own) is not getattr(keras.optimizers.Optimizer, own):
            raise InputError(f"{flag} has its own {own}, which labkit doesn't call; write update_step alone")
    rate = optimizer.get_config()["learning_rate"]
    if not isinstance(rate, float):
        raise InputError(f"{flag} has a schedule of its own; give a number and --learning-rate-schedule")
    if not math.isclose(rate, config.learning_rate, rel_tol=1e-6):
        raise InputError(
            f"{flag} has a learning rate of {rate:.6g}, and --learning-rate is {config.learning_rate}; give "
            f"--learning-rate {rate:.6g}, or let it take learning_rate as an argument"
        )


MUON_MOMENTUM = 0.6  # that of airbench94_muon.py (Jordan, 2024)


class SGD(Optimizer):
    """Stochastic gradient descent with momentum, weight decay and clipping.

    With gradient g, weight w, velocity v, learning rate r, momentum m and decay d::

        l2:        g = g + d w                          decoupled:  w = w - r d w
        v = m v + g;  w = w - r v                       (Nesterov: w = w - r (g + m v))

    The velocity does not include the learning rate, as in TensorFlow's ``MomentumOptimizer`` of 2017. With
    ``optimizer="muon"``, ``muon.update_kernel`` updates the kernels of convolutions, without weight decay.
    Arguments, and what differs for some weights: see ``Optimizer``.
    """

    def __init__(self, model: keras.Model, config: OptimizerConfig, head_factor: float = 1.0) -> None:
        super().__init__(model, config, head_factor, "sgd")
        kernels = muon_kernels(model) if config.optimizer == "muon" else []
        by_muon = {id(kernel) for kernel in kernels}
        self._by_muon = [id(variable) in by_muon for variable in model.trainable_variables]
        for index in (index for index, is_muons in enumerate(self._by_muon) if is_muons):
            self._factors[index] *= config.muon_learning_rate / config.learning_rate
            self._decay[index] = 0.0
        self.velocities = self.make_slots("velocity")

    @property
    def slots(self) -> dict[str, list[tf.Variable]]:
        """The velocities."""
        return {"velocity": list(self.velocities)}

    def _step(self, variable, slots, counters, gradient, learning_rate, index: int):
        [velocity] = slots
        if self._by_muon[index]:
            return update_kernel(variable, velocity, gradient, learning_rate, MUON_MOMENTUM)
        return tf.raw_ops.ResourceApplyMomentum(
            var=variable.handle,
            accum=velocity.handle,
            lr=learning_rate,
            grad=gradient,
            momentum=self._config.momentum,
            use_nesterov=self._config.nesterov,
        )


EPSILON = 1e-7  # Keras's, of AdamW


class AdamW(Optimizer):
    """Loshchilov & Hutter, "Decoupled Weight Decay Regularization" (2017), arXiv:1711.05101, algorithm 2.

    With gradient g, weight w, learning rate r, decay d, betas b and c, and t updates of the weight so far,
    this one included::

        w = w - r d w
        m = b m + (1 - b) g;  s = c s + (1 - c) g^2
        w = w - r sqrt(1 - c^t) / (1 - b^t) m / (sqrt(s) + epsilon)

    Epsilon stands where Kingma & Ba (2014, end of section 2) put it for speed, and where Keras has it. A
    weight that was frozen at first starts with t = 1. Arguments, and what differs for some weights: see
    ``Optimizer``.
    """

    def __init__(self, model: keras.Model, config: OptimizerConfig, head_factor: float = 1.0) -> None:
        super().__init__(model, config, head_factor, "adamw")
        self._adds_decay = False
        self.means = self.make_slots("mean")
        self.squares = self.make_slots("square")
        # Of the weights' type, as all state of a run is; float32 counts exactly to 16 million.
        zeros = tf.zeros([len(self._variables)], self._variables[0].dtype)
        self.updates = tf.Variable(zeros, trainable=False, name="updates")

    @property
    def slots(self) -> dict[str, list[tf.Variable]]:
        """The moving means of the gradient and of its square."""
        return {"mean gradient": list(self.means), "mean squared gradient": list(self.squares)}

    @property
    def counters(self) -> list[tf.Variable]:
        """How often each weight was updated, [weights]."""
        return [self.updates]

    def _count(self, strategy: Any, indices: Sequence[int]) -> None:
        ones = np.zeros(len(self._variables))
        ones[list(indices)] = 1.0
        strategy.extended.update(self.updates, lambda updates: updates.assign_add(ones), group=False)

    def _step(self, variable, slots, counters, gradient, learning_rate, index: int):
        (mean, square), [updates] = slots, counters
        beta1, beta2 = self._config.adamw_beta1, self._config.adamw_beta2
        count = tf.cast(updates[index], variable.dtype)
        return tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=mean.handle,
            v=square.handle,
            beta1_power=tf.pow(tf.constant(beta1, count.dtype), count),
            beta2_power=tf.pow(tf.constant(beta2, count.dtype), count),
            lr=learning_rate,
            beta1=beta1,
            beta2=beta2,
            epsilon=EPSILON,
            grad=gradient,
        )


def make_optimizer(model: keras.Model, config: OptimizerConfig, head_factor: float = 1.0) -> Optimizer:
    """Return the optimizer; see ``Optimizer`` for the arguments. Call it inside ``strategy.scope()``."""
    if config.optimizer == "adamw":
        return AdamW(model, config, head_factor)
    by = SGD if config.optimizer in LABKITS else KerasOptimizer
    return by(model, config, head_factor)
