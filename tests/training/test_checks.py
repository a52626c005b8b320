"""What a data set can't give is refused with the most that it can."""

from types import SimpleNamespace

import pytest

from labkit.config import DataConfig
from labkit.errors import InputError
from labkit.training.checks import check_fits

MANIFEST = SimpleNamespace(
    count=lambda split: 1000, image_shape=(32, 32, 3), dataset="shapes", directory="/data/shapes"
)


@pytest.mark.parametrize(
    ("flag", "most", "fields"),
    [
        ("--train-batch-size", 1000, lambda value: {"train_batch_size": value}),
        ("--cutout-size", 31, lambda value: {"cutout_size": value}),
        ("--progressive-resizing", 31, lambda value: {"progressive_resizing": f"{value}:0.5"}),
    ],
)
def test_the_most_is_accepted_and_one_more_refused(flag, most, fields):
    check_fits(DataConfig(**fields(most)), MANIFEST)
    with pytest.raises(InputError, match=f"^{flag} .*{most + 1}.*allowed.*at most {most}"):
        check_fits(DataConfig(**fields(most + 1)), MANIFEST)


def test_padding_has_as_many_pixels_as_there_are_to_mirror():
    small = SimpleNamespace(**{**vars(MANIFEST), "image_shape": (8, 8, 3)})
    check_fits(DataConfig(crop_padding=8), small)
    check_fits(DataConfig(crop_padding=7, crop_padding_mode="reflect"), small)
    with pytest.raises(InputError, match="--crop-padding has 8 pixels; allowed .* at most 7"):
        check_fits(DataConfig(crop_padding=8, crop_padding_mode="reflect"), small)
