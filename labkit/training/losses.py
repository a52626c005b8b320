"""The loss of one example."""

import tensorflow as tf

__all__ = ["softmax_cross_entropy"]


def softmax_cross_entropy(labels: tf.Tensor, logits: tf.Tensor, label_smoothing: float = 0.0) -> tf.Tensor:
    """Return the cross-entropy of each example, in nats, float32 [batch].

    Args:
        labels: int [batch].
        logits: float32 [batch, num_classes].
        label_smoothing: probability mass spread evenly over all classes (Szegedy et al., 2016, section 7).
    """
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
    if label_smoothing:
        uniform = -tf.reduce_mean(tf.nn.log_softmax(logits), axis=-1)
        losses = (1.0 - label_smoothing) * losses + label_smoothing * uniform
    return losses
