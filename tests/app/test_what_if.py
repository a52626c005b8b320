"""Changes of an image do what their names say, and nothing else."""

import io

import numpy as np
import pytest
from PIL import Image

from app.images.what_if import Changes, Rectangle, changed


@pytest.fixture(params=[(12, 12, 3), (9, 14, 3), (10, 10, 1)], ids=str)
def image(request):
    return np.random.default_rng(0).integers(0, 256, request.param).astype(np.uint8)


def test_the_defaults_change_nothing_and_return_a_copy(image):
    result = changed(image, Changes())
    np.testing.assert_array_equal(result, image)
    assert not np.shares_memory(result, image)
    np.testing.assert_array_equal(changed(image, Changes(rotate=360.0, seed=7)), image)


@pytest.mark.parametrize(("right", "down"), [(3, 0), (0, -2), (-4, 5), (1, 1)])
def test_a_shift_moves_every_pixel_by_exactly_that_much(image, right, down):
    result = changed(image, Changes(shift_x=right, shift_y=down))
    mean = np.rint(image.mean(axis=(0, 1))).astype(np.uint8)
    height, width = image.shape[:2]
    for y in range(height):
        for x in range(width):
            inside = 0 <= y - down < height and 0 <= x - right < width
            np.testing.assert_array_equal(result[y, x], image[y - down, x - right] if inside else mean)


def test_a_shift_out_of_the_image_leaves_its_mean_colour(image):
    result = changed(image, Changes(shift_x=100, shift_y=-100))
    assert len(np.unique(result.reshape(-1, image.shape[2]), axis=0)) == 1


def test_two_flips_are_none(image):
    once = changed(image, Changes(flip=True))
    np.testing.assert_array_equal(once, image[:, ::-1])
    np.testing.assert_array_equal(changed(once, Changes(flip=True)), image)


@pytest.mark.parametrize("quarters", [1, 2, 3, -1])
def test_quarter_turns_are_exact(quarters):
    image = np.random.default_rng(1).integers(0, 256, (11, 11, 3)).astype(np.uint8)
    np.testing.assert_array_equal(changed(image, Changes(rotate=90.0 * quarters)), np.rot90(image, quarters))


def test_a_turn_agrees_with_pil_away_from_the_edge():
    y, x = np.mgrid[:40, :40]
    smooth = (127 + 60 * np.sin(x / 6) + 50 * np.cos(y / 5)).astype(np.uint8)[..., None].repeat(3, axis=2)
    ours = changed(smooth, Changes(rotate=25.0)).astype(int)
    theirs = np.asarray(Image.fromarray(smooth).rotate(25.0, Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(ours - theirs)[12:-12, 12:-12].max() <= 2


def test_blur_keeps_the_mean_of_a_flat_image_and_spreads_a_point():
    flat = np.full((9, 9, 3), 77, np.uint8)
    np.testing.assert_array_equal(changed(flat, Changes(blur=2.0)), flat)
    point = np.zeros((21, 21, 1), np.uint8)
    point[10, 10] = 255
    spread = changed(point, Changes(blur=1.0))[..., 0].astype(float)
    offsets = np.arange(21) - 10
    expected = 255 * np.exp(-0.5 * (offsets[:, None] ** 2 + offsets**2)) / (2 * np.pi)
    np.testing.assert_allclose(spread, expected, atol=1.0)


def test_brightness_multiplies_and_clips(image):
    expected = np.clip(np.rint(image * 1.5), 0, 255)
    np.testing.assert_array_equal(changed(image, Changes(brightness=1.5)), expected)
    assert changed(image, Changes(brightness=0.0)).max() == 0


def test_noise_depends_on_its_seed_alone():
    grey = np.full((64, 64, 3), 128, np.uint8)
    first, again, other = (changed(grey, Changes(noise=10.0, seed=seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    assert first.astype(float).std() == pytest.approx(10.0, rel=0.05)


def test_jpeg_is_what_pil_writes(image):
    result = changed(image, Changes(jpeg_quality=30))
    buffer = io.BytesIO()
    Image.fromarray(image.squeeze(-1) if image.shape[2] == 1 else image).save(buffer, "JPEG", quality=30)
    np.testing.assert_array_equal(result, np.asarray(Image.open(buffer)).reshape(image.shape))
    assert (result != image).any()


def test_a_cover_hides_its_part_and_no_other(image):
    result = changed(image, Changes(cover=Rectangle(left=2, top=3, width=4, height=5)))
    inside = np.zeros(image.shape[:2], bool)
    inside[3:8, 2:6] = True
    np.testing.assert_array_equal(result[~inside], image[~inside])
    assert len(np.unique(result[inside], axis=0)) == 1
    over = changed(image, Changes(cover=Rectangle(-3, -3, 5, 4)))
    np.testing.assert_array_equal(over[1:], image[1:])
    assert (over[:1, :2] == over[0, 0]).all()


@pytest.mark.parametrize("changes", [{"blur": -1.0}, {"noise": -1.0}, {"brightness": -0.1}])
def test_negative_strengths_are_refused(image, changes):
    with pytest.raises(ValueError, match="can't be negative"):
        changed(image, Changes(**changes))


def test_a_quality_out_of_range_is_refused(image):
    with pytest.raises(ValueError, match="1 to 100"):
        changed(image, Changes(jpeg_quality=0))
