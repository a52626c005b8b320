"""What lesson 00 shows of a run and of a network's answers."""

import numpy as np

from course.lessons.tour import answers, files_of, variants
from labkit import figures as plots


class FakeRun:
    def __init__(self, path):
        self.path = path


def test_the_files_of_a_run_are_listed_with_their_sizes(tmp_path):
    (tmp_path / "checkpoints" / "step-00000001").mkdir(parents=True)
    (tmp_path / "checkpoints" / "step-00000001" / "state.json").write_bytes(bytes(2048))
    (tmp_path / "config.json").write_bytes(bytes(1024))
    (tmp_path / "of_the_user.txt").write_text("not a file of a run")
    listed = files_of(FakeRun(tmp_path))
    assert [row[:2] for row in listed.rows] == [("config.json", "1 KiB"), ("checkpoints/", "2 KiB")]
    assert "every setting" in repr(listed) and "every setting" in listed._repr_html_()


def test_variants_keep_the_shape_and_leave_the_image_alone():
    image = np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)
    before = image.copy()
    found = variants(image)
    assert {(picture.shape, picture.dtype) for picture in found.values()} == {(image.shape, image.dtype)}
    np.testing.assert_array_equal(found["mirrored"][:, 0], image[:, -1])
    np.testing.assert_array_equal(found["upside down"][0], image[-1])
    np.testing.assert_array_equal(image, before)


def test_answers_name_the_most_probable_classes():
    pictures = {"a": np.zeros((4, 4, 3), np.uint8), "b": np.zeros((4, 4, 3), np.uint8)}
    probabilities = np.array([[0.1, 0.6, 0.3, 0.0], [0.0, 0.0, 0.2, 0.8]])
    figure = answers(pictures, probabilities, ["cat", "dog", "ship", "car"])
    texts = [[text.get_text() for text in axis.texts] for axis in figure.axes[2:]]
    assert texts[0] == ["dog 60%", "ship 30%", "cat 10%"]
    assert texts[1][0] == "car 80%"
    assert plots.png(figure)
