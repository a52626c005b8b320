"""Wrong answers to the exercises of lesson 06, each with words of its hint."""

import math

import numpy as np

from course.lessons.debug.patients import softmax


def lowest(classes):
    return math.log(1 + (classes - 1) / math.e)


# ---- 06.1 ----------------------------------------------------------------------------------------------


def only_the_update(patient):
    before = patient.weights()["hidden/kernel"]
    patient.step(*patient.batch(1))
    change = np.linalg.norm(patient.weights()["hidden/kernel"] - before) / np.linalg.norm(before)
    return "rate" if change < 1e-4 else "labels"


def no_look_at_outputs(patient):
    if patient.batch(1)[0].std() < 0.01:
        return "input"
    return only_the_update(patient)


def no_look_at_weights(patient):
    images, _ = patient.batch(1)
    if images.std() < 0.01:
        return "input"
    return "dead" if patient.outputs(images).std(axis=0).max() < 1e-9 else "labels"


# ---- 06.3 ----------------------------------------------------------------------------------------------


def still_broken(weights, gradients_of, schedule):
    from course.lessons.debug.broken import broken_update

    return broken_update(weights, gradients_of, schedule)


def without_a_graph(weights, gradients_of, schedule):
    step = 0

    def update(images, labels):
        nonlocal step
        for weight, gradient in zip(weights, gradients_of(images, labels), strict=True):
            weight.assign_sub(schedule(step) * gradient)
        step += 1

    return update


def does_nothing(weights, gradients_of, schedule):
    return lambda images, labels: None


# ---- 06.4 ----------------------------------------------------------------------------------------------


def mixing(images, weights):
    from course.lessons.debug.broken import broken_network

    return broken_network(images, weights)


def without_relu(images, weights):
    import tensorflow as tf

    halves = tf.reshape(tf.stack([images[:, :6], images[:, 6:]], axis=1), [-1, 72])
    return tf.reshape(halves @ weights["half"], [len(images), 64]) @ weights["logits"]


def lower_half_first(images, weights):
    import tensorflow as tf

    halves = tf.reshape(tf.stack([images[:, 6:], images[:, :6]], axis=1), [-1, 72])
    return tf.reshape(tf.nn.relu(halves @ weights["half"]), [len(images), 64]) @ weights["logits"]


def in_numpy(images, weights):
    half, logits = weights["half"].numpy(), weights["logits"].numpy()
    hidden = np.maximum(np.asarray(images).reshape(-1, 72) @ half, 0)
    return hidden.reshape(-1, 64) @ logits + 0 * weights["logits"][0, 0]


# ---- 06.5 ----------------------------------------------------------------------------------------------


def distances(train, validation):
    flat, other = train.reshape(len(train), -1), validation.reshape(len(validation), -1)
    return np.sqrt(((other[:, None] - flat[None]) ** 2).mean(axis=2)).min(axis=1)


def bit_by_bit(train, validation):
    return np.array([(train == image).all(axis=(1, 2)).any() for image in validation])


def too_wide(train, validation):
    return distances(train, validation) < 5


def too_narrow(train, validation):
    return distances(train, validation) < 0.02


WRONG = {
    "06.1": [
        (lambda patient: "labels", "it has to measure each"),
        (only_the_update, "look at the numbers in its images"),
        (no_look_at_outputs, "the same for every image"),
        (no_look_at_weights, "before and after a step"),
        (lambda patient: patient._fault, "reads patient._fault"),
    ],
    "06.2": [
        (("learning rate too small", lowest), "has come to a floor"),
        (("labels shuffled", lowest), "of new digits right"),
        (("layer frozen", lowest), "every weight changes"),
        (("softmax twice", lambda classes: 0.0), "which may grow"),
        (("softmax twice", lambda classes: math.log(classes)), "the loss of equal outputs"),
        (("softmax twice", lambda classes: 1.4612), "how many outputs are 0"),
        (
            ("softmax twice", lambda classes: float(softmax(np.eye(classes))[0, 0])),
            "take the softmax of the best",
        ),
        (("softmax twice", 1.4612), "expected a function"),
    ],
    "06.3": [
        (still_broken, "while TensorFlow traced it"),
        (without_a_graph, "as a tensor"),
        (does_nothing, "the weights are as before"),
        (lambda weights, gradients_of, schedule: None, "what your function returns"),
    ],
    "06.4": [
        (mixing, "of the batch is changed"),
        (without_relu, "fix only the mixing"),
        (lower_half_first, "the upper half comes first"),
        (in_numpy, "operations of TensorFlow only"),
    ],
    "06.5": [
        (bit_by_bit, "aren't equal bit by bit"),
        (too_wide, "images that aren't copies"),
        (too_narrow, "there is a gap"),
        (lambda train, validation: np.flatnonzero(distances(train, validation) < 0.5), "expected ["),
    ],
}
