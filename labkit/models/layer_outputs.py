"""A network that also returns the output of each of its layers."""

from typing import Any

import keras

__all__ = ["with_layer_outputs"]


def with_layer_outputs(model: keras.Model, image_size: int | None = None) -> keras.Model:
    """Return a model that shares its layers with ``model`` and returns each layer's output by its name.

    The outputs are a dict in the order of the forward pass; the last one is the logits.

    Args:
        model: maps images [batch, height, width, channels] to logits.
        image_size: side of the images in pixels; None: the model's own height and width.

    Raises:
        ValueError: a layer has weights that fit only another size.
    """
    outputs: dict[str, Any] = {}

    def call(layer: keras.Operation, *inputs: Any, **options: Any) -> Any:
        outputs[layer.name] = layer(*inputs, **options)
        return outputs[layer.name]

    height, width, channels = model.input_shape[1:]
    shape = (image_size or height, image_size or width, channels)
    images = keras.Input(shape, name="images", dtype=model.inputs[0].dtype)
    keras.models.clone_model(
        model, input_tensors=images, clone_function=lambda layer: layer, call_function=call
    )
    return keras.Model(images, outputs, name=model.name)
