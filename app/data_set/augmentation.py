"""One training image as the network gets it in chosen epochs."""

import streamlit as st

from app.data_set import tiles
from app.data_set.augmented import augmented_image, epochs_of, settings_in_words
from app.data_set.tiles import Tile
from app.images.text import plain
from labkit.config.recorded import recorded_config
from labkit.data.manifest import Manifest
from labkit.errors import InputError
from labkit.run_directory import RunDirectory

__all__ = ["augmentation"]

FIRST_EPOCHS = "0-11"


def augmentation(run: RunDirectory, manifest: Manifest) -> None:
    """Draw the choice of an image and of epochs, and the images that the run's pipeline makes."""
    config = recorded_config(run)
    count = manifest.count("train")
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        index = st.number_input(
            "Training image",
            min_value=0,
            max_value=max(count - 1, 0),
            step=1,
            key="image",
            bind="query-params",
            width=160,
            help=f"Its number in the training split, 0 to {count - 1:,}.",
        )
        text = st.text_input(
            "Epochs",
            value=FIRST_EPOCHS,
            key="epochs",
            bind="query-params",
            width=240,
            help="Numbers from 0 and ranges, such as 0-11, 50. The first epoch is 0.",
        )
    st.caption(f"Settings of this run: {plain(settings_in_words(config))}.")
    try:
        epochs = epochs_of(text)
        original, made = augmented_image(manifest, config, int(index), epochs)
    except InputError as error:
        st.warning(plain(str(error)), icon=":material/error:")
        return
    height, width = original.shape[:2]
    shown = [Tile(original, ["original", f"{width}×{height} pixels"])]
    for image in made:
        step = f"step {image.step:,}" if image.step else ""
        side = image.image.shape[0]
        size = f"{side}×{side} pixels" if side != height else ""
        shown.append(
            Tile(image.image, [f"epoch {image.epoch:,}", *filter(None, [step, image.in_words(), size])])
        )
    st.html(tiles.grid(shown))
    last = config.run.train_steps * config.data.train_batch_size // max(count, 1)
    words = "The pixels are exactly those of the training, before standardization. "
    if made[0].step is None:
        words += "The steps aren't known, because this run reads its examples as a stream. "
    elif any((image.step or 0) > config.run.train_steps for image in made):
        words += (
            f"The run ends after {config.run.train_steps:,} steps, in epoch {last:,}; later ones show how it "
            "would go on. "
        )
    st.caption(words)
