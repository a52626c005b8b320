"""Networks of one's own, as people write them: for ``--model tests/own_nets.py:NAME``."""

import functools

import keras
import numpy as np
import tensorflow as tf
from keras import layers


def functional(input_shape, num_classes, width=8):
    images = keras.Input(input_shape)
    x = layers.Conv2D(width, 3, padding="same", use_bias=False)(images)
    x = layers.BatchNormalization()(x)
    x = layers.SpatialDropout2D(0.1)(layers.ReLU()(x))
    shortcut = x
    x = layers.Conv2D(width, 3, padding="same", activation="relu")(x)
    x = layers.GlobalAveragePooling2D()(x + shortcut)
    return keras.Model(images, layers.Dense(num_classes)(layers.Dropout(0.2)(x)))


def sequential(input_shape, num_classes):
    return keras.Sequential(
        [
            layers.Conv2D(8, 3, strides=2, activation="relu"),
            layers.BatchNormalization(center=False, momentum=0.9),
            layers.Flatten(),
            layers.Dense(16),
            layers.BatchNormalization(scale=False),
            layers.Dropout(0.3),
            layers.Dense(num_classes),
        ]
    )


class Block(layers.Layer):
    def __init__(self, filters):
        super().__init__()
        self.conv, self.norm = (
            layers.Conv2D(filters, 3, padding="same"),
            layers.BatchNormalization(name="norm"),
        )

    def call(self, x, training=False):
        return keras.ops.relu(self.norm(self.conv(x), training=training))


class Net(keras.Model):
    """A model of a class of one's own, whose blocks give their normalizations one name."""

    def __init__(self, num_classes):
        super().__init__()
        self.blocks = [Block(8), Block(8)]
        self.drop, self.head = layers.Dropout(0.2), layers.Dense(num_classes)

    def call(self, x, training=False):
        for block in self.blocks:
            x = block(x, training=training)
        return self.head(self.drop(keras.ops.mean(x, axis=(1, 2)), training=training))


def subclassed(input_shape, num_classes):
    return Net(num_classes)


def application(input_shape, num_classes):
    return keras.applications.MobileNetV2(
        input_shape, alpha=0.35, weights=None, classes=num_classes, classifier_activation=None
    )


def mlp(input_shape, num_classes, units=32, activation="relu"):
    images = keras.Input(input_shape)
    x = layers.Dense(units, activation=activation)(layers.Flatten()(images))
    return keras.Model(images, layers.Dense(num_classes)(x))


def chain(input_shape, num_classes, begins=True):
    begin = [keras.Input(input_shape)] if begins else []
    return keras.Sequential([*begin, layers.Flatten(), layers.Dense(num_classes)])


# ---- what can't be trained


def raises(input_shape, num_classes):
    raise ValueError("no such width")


def quits(input_shape, num_classes):
    raise SystemExit(3)


def nothing(input_shape, num_classes):
    pass


def ends_in_softmax(input_shape, num_classes):
    return keras.Sequential([layers.Flatten(), layers.Dense(num_classes, activation="softmax")])


def softmax_layer(input_shape, num_classes):
    return keras.Sequential([layers.Flatten(), layers.Dense(num_classes), layers.Softmax()])


def two_inputs(input_shape, num_classes):
    images = [keras.Input(input_shape), keras.Input(input_shape)]
    return keras.Model(images, layers.Dense(num_classes)(layers.Flatten()(layers.Add()(images))))


def two_outputs(input_shape, num_classes):
    images = keras.Input(input_shape)
    x = layers.Flatten()(images)
    return keras.Model(images, [layers.Dense(num_classes)(x), layers.Dense(num_classes)(x)])


def too_few_outputs(input_shape, num_classes):
    return keras.Sequential([layers.Flatten(), layers.Dense(num_classes - 1)])


def for_other_images(input_shape, num_classes):
    return keras.Sequential([keras.Input((28, 28, 1)), layers.Flatten(), layers.Dense(num_classes)])


def for_larger_images(input_shape, num_classes):
    images = keras.Input((224, 224, 3))
    return keras.Model(images, layers.Dense(num_classes)(layers.GlobalAveragePooling2D()(images)))


def gives_nan(input_shape, num_classes):
    images = keras.Input(input_shape)
    return keras.Model(images, keras.ops.log(layers.Dense(num_classes)(layers.Flatten()(images))))


def draws_by_itself(input_shape, num_classes):
    return keras.Sequential([layers.GaussianNoise(0.1), layers.Flatten(), layers.Dense(num_classes)])


def regularized(input_shape, num_classes):
    return keras.Sequential([layers.Flatten(), layers.Dense(num_classes, kernel_regularizer="l2")])


class Penalty(layers.Layer):
    """Adds a loss, as ``model.fit`` takes it, in training alone."""

    def call(self, x, training=False):
        if training:
            self.add_loss(keras.ops.mean(x**2))
        return x


def penalized(input_shape, num_classes):
    return keras.Sequential([Penalty(), layers.Flatten(), layers.Dense(num_classes)])


def saturated(input_shape, num_classes):
    images = keras.Input(input_shape)
    logits = layers.Dense(num_classes, bias_initializer="glorot_uniform")(layers.Flatten()(images))
    return keras.Model(images, layers.Softmax()(200 * logits))


def constrained(input_shape, num_classes):
    return keras.Sequential([layers.Flatten(), layers.Dense(num_classes, kernel_constraint="max_norm")])


def rescaled(input_shape, num_classes):
    return keras.Sequential([layers.Rescaling(1 / 255), layers.Flatten(), layers.Dense(num_classes)])


def divides(input_shape, num_classes):
    images = keras.Input(input_shape)
    return keras.Model(images, layers.Dense(num_classes)(layers.Flatten()(images / 255.0)))


class DividesInItsCall(Net):
    def call(self, x, training=False):
        return super().call(x / 127.5 - 1, training=training)


def divides_in_its_call(input_shape, num_classes):
    return DividesInItsCall(num_classes)


def prepares_as_resnet(input_shape, num_classes):
    images = keras.Input(input_shape)
    prepared = keras.applications.resnet.preprocess_input(images)
    return keras.Model(images, layers.Dense(num_classes)(layers.Flatten()(prepared)))


class Centred(layers.Layer):
    def call(self, x):
        return x - tf.reduce_mean(x, axis=0, keepdims=True)


def centres_a_batch(input_shape, num_classes):
    return keras.Sequential([Centred(), layers.Flatten(), layers.Dense(num_classes)])


class DroppedRarely(layers.Layer):
    """Drops one image of a thousand, so that two calls seldom differ."""

    def call(self, x, training=False):
        kept = tf.random.uniform([tf.shape(x)[0], 1]) < 0.999
        return tf.where(kept, x, 0.0) if training else x


def drops_rarely(input_shape, num_classes):
    return keras.Sequential([layers.Flatten(), DroppedRarely(), layers.Dense(num_classes)])


class Misspells(keras.Model):
    def __init__(self, num_classes):
        super().__init__()
        self.dense = layers.Dense(num_classes)

    def call(self, x):
        return self.dence(x)


def misspells(input_shape, num_classes):
    return Misspells(num_classes)


class WithoutGradient(keras.Model):
    """Has a layer behind ``stop_gradient``."""

    def __init__(self, num_classes):
        super().__init__()
        self.still, self.dense = layers.Conv2D(4, 3), layers.Dense(num_classes)

    def call(self, x):
        return self.dense(tf.reshape(tf.stop_gradient(self.still(x)), [-1, 30 * 30 * 4]))


def without_gradient(input_shape, num_classes):
    return WithoutGradient(num_classes)


@functools.cache
def the_same(input_shape, num_classes):
    return keras.Sequential([keras.Input(input_shape), layers.Flatten(), layers.Dense(num_classes)])


FLATTEN = layers.Flatten()


def over_no_weights(input_shape, num_classes):
    return keras.Sequential([keras.Input(input_shape), FLATTEN, layers.Dense(num_classes)])


BACKBONE = keras.Sequential([keras.Input((32, 32, 3)), layers.Conv2D(4, 3), layers.Flatten()])


def over_the_same(input_shape, num_classes):
    return keras.Sequential([BACKBONE, layers.Dense(num_classes)])


def _with_head(function):
    @functools.wraps(function)
    def whole(shape, classes):
        return keras.Sequential([*function(shape), layers.Dense(classes)])

    return whole


@_with_head
def decorated(shape):
    return [keras.Input(shape), layers.Flatten()]


def in_float64_inside(input_shape, num_classes):
    inside = layers.Dense(8, activation="relu", dtype="float64")
    return keras.Sequential([keras.Input(input_shape), layers.Flatten(), inside, layers.Dense(num_classes)])


class TrainsItself(keras.Sequential):
    def train_step(self, data):
        return {}


class LosesItself(keras.Sequential):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return keras.ops.mean(y_pred)


def loses_itself(input_shape, num_classes):
    return LosesItself([layers.Flatten(), layers.Dense(num_classes)])


def trains_itself(input_shape, num_classes):
    return TrainsItself([layers.Flatten(), layers.Dense(num_classes)])


class Gated(keras.Model):
    """Its last layer is a gate, which isn't its end."""

    def __init__(self, num_classes):
        super().__init__()
        self.head, self.gate = layers.Dense(num_classes), layers.Dense(3072, activation="sigmoid")

    def call(self, x):
        x = keras.ops.reshape(x, (-1, 3072))
        return self.head(x * self.gate(x))


def gated(input_shape, num_classes):
    return Gated(num_classes)


class Counts(layers.Layer):
    def build(self, input_shape):
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, name="calls")

    def call(self, x):
        self.calls.assign_add(1.0)
        return x


def counts(input_shape, num_classes):
    return keras.Sequential([Counts(), layers.Flatten(), layers.Dense(num_classes)])


def normalizes_twice(input_shape, num_classes):
    images, norm = keras.Input(input_shape), layers.BatchNormalization()
    return keras.Model(images, layers.Dense(num_classes)(layers.Flatten()(norm(norm(images)))))


def normalizes_rows(input_shape, num_classes):
    return keras.Sequential([layers.BatchNormalization(axis=2), layers.Flatten(), layers.Dense(num_classes)])


number = 3


class Noisy(keras.Model):
    """Draws numbers without a layer."""

    def __init__(self, num_classes, draw):
        super().__init__()
        self.draw, self.head = draw, layers.Dense(num_classes)

    def call(self, x, training=False):
        x = keras.ops.mean(x, axis=(1, 2))
        return self.head(x + self.draw(keras.ops.shape(x)) if training else x)


def draws_by_keras(input_shape, num_classes):
    return Noisy(num_classes, keras.random.normal)


def draws_by_numpy(input_shape, num_classes):
    return Noisy(num_classes, lambda shape: np.float32(np.random.normal()))


def held(input_shape, num_classes):
    model = mlp(input_shape, num_classes)
    model.trainable = False
    return model


# ---- an optimizer


class Signum(keras.optimizers.Optimizer):
    """Bernstein et al., 2018: the sign of the mean gradient."""

    def __init__(self, learning_rate=0.01, beta=0.9, **kwargs):
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.beta = beta

    def build(self, variables):
        super().build(variables)
        self.means = self.add_optimizer_variables(variables, "mean")

    def update_step(self, gradient, variable, learning_rate):
        mean = self.means[self._get_variable_index(variable)]
        self.assign(mean, self.beta * mean + (1 - self.beta) * gradient)
        self.assign_sub(variable, keras.ops.cast(learning_rate, variable.dtype) * keras.ops.sign(mean))

    def get_config(self):
        return super().get_config() | {"beta": self.beta}


def slow_lion():
    return keras.optimizers.Lion(0.0005)


def no_optimizer():
    return None


class NoUpdate(keras.optimizers.Optimizer):
    pass


class Plain(keras.optimizers.Optimizer):
    def __init__(self, learning_rate=0.01, **kwargs):
        super().__init__(learning_rate=learning_rate, **kwargs)

    def update_step(self, gradient, variable, learning_rate):
        variable.assign_sub(tf.cast(self.learning_rate, variable.dtype) * gradient)


class Hidden(Plain):
    """Has slots that Keras doesn't know of."""

    def build(self, variables):
        super().build(variables)
        self.slots = [tf.Variable(tf.zeros(variable.shape)) for variable in variables]


class HiddenUntilUsed(Plain):
    def __init__(self, learning_rate=0.01, **kwargs):
        super().__init__(learning_rate, **kwargs)
        self.slots = {}

    def update_step(self, gradient, variable, learning_rate):
        slot = self.slots.setdefault(variable.ref(), tf.Variable(tf.zeros(variable.shape)))
        variable.assign_sub(learning_rate * slot.assign(0.9 * slot + gradient))


class Inner(Plain):
    def build(self, variables):
        super().build(variables)
        self.inner = keras.optimizers.Adam()
        self.inner.build(variables)


class WithAttributes(Plain):
    """Has attributes that hold no state of their own."""

    def build(self, variables):
        super().build(variables)
        self.table = {1: "a", "b": 2, keras.layers.Dense: 0.5}
        self.weights = [variable.value for variable in variables]
        self.slots = [self.add_variable_from_reference(variable, "slot").value for variable in variables]


class OwnApply(Plain):
    def apply(self, gradients, trainable_variables=None):
        return super().apply([2 * gradient for gradient in gradients], trainable_variables)


# ---- losses and metrics


def plain_loss(labels, logits, scale=1.0):
    return scale * keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)


def centred_loss(labels, logits):
    losses = plain_loss(labels, logits)
    return losses - tf.reduce_mean(losses) + 1


CALLS = tf.Variable(0.0)


def counting_loss(labels, logits):
    return plain_loss(labels, logits) * CALLS.assign_add(1.0)


def branching_loss(labels, logits):
    losses = plain_loss(labels, logits)
    return 2 * losses if tf.reduce_mean(losses) > 1 else losses


class OwnCall(keras.losses.CategoricalCrossentropy):
    def __call__(self, y_true, y_pred, sample_weight=None):
        return 2 * super().__call__(y_true, y_pred, sample_weight)


class TemperedLoss(keras.losses.Loss):
    def __init__(self, scale=1.0, **kwargs):
        super().__init__(**kwargs)
        self.scale = scale

    def call(self, labels, logits):
        return keras.losses.categorical_crossentropy(labels, logits * self.scale, from_logits=True)


def of_probabilities(labels, outputs, from_logits=False):
    return keras.losses.sparse_categorical_crossentropy(labels, outputs, from_logits=from_logits)


def mean_loss(labels, logits):
    return keras.ops.mean(plain_loss(labels, logits))


def labels_as_loss(labels, logits):
    return keras.ops.cast(labels, "float32")


def among_two(labels, logits):
    return keras.ops.in_top_k(labels, logits, 2)


def accuracy(labels, logits):
    return 0.5


def f1_micro(labels, logits):
    return 0.5


def whole_batches(labels, logits):
    return logits


def of_each_class(labels, logits):
    return keras.ops.mean(logits**2, axis=0)


def negative_loss(labels, logits):
    return -plain_loss(labels, logits)


def loss_that_asserts(labels, logits):
    tf.debugging.assert_less(tf.shape(logits)[0], 10, message="too many images")
    return plain_loss(labels, logits)


SEEN = []


def loss_that_looks(labels, logits):
    SEEN.append(len(labels) if tf.executing_eagerly() else None)
    return plain_loss(labels, logits)


class NoResult(keras.metrics.Metric):
    def update_state(self, labels, outputs, sample_weight=None):
        pass


OWN_NUMBER = 3
OF_LOGITS = keras.metrics.SparseCategoricalCrossentropy(from_logits=True)
THEIRS = keras.metrics.categorical_accuracy
FALLS = keras.metrics.CategoricalCrossentropy
METRICS = [among_two, keras.metrics.TopKCategoricalAccuracy(3, name="top3"), "auc"]


# ---- augmentation


def noisy(images, seeds):
    """Add noise of each image's own seeds, and turn it by quarters."""

    def one(values):
        image, seed = values
        noise = tf.random.stateless_uniform(tf.shape(image), seed, -20.0, 20.0)
        return tf.image.rot90(tf.cast(image, tf.float32) + noise, seed[0] % 4)

    return tf.map_fn(one, (images, seeds), fn_output_signature=tf.float32)


def draws_anew(images, seeds):
    return tf.cast(images, tf.float32) + tf.random.uniform(tf.shape(images))


def mixes_images(images, seeds):
    return tf.reverse(images, axis=[0])


def crops_images(images, seeds):
    return images[:, 1:]


def scales_to_one(images, seeds):
    return tf.cast(images, tf.float32) / 255.0


def shows_seeds(images, seeds):
    return tf.cast(images, tf.float32) + tf.cast(seeds, tf.float32)[:, :, None, None]
