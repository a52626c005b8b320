"""What the data set holds: samples of each class, balance, mean images, statistics, source, duplicates."""

import html
from typing import Any

import numpy as np
import streamlit as st
from numpy.typing import NDArray

from app import background
from app.address import image_address, page_of
from app.charts.board import PALETTE
from app.data_set.scan import DataScan, Duplicates, SplitScan, find_duplicates, scan_data
from app.images import cards, marking
from app.images.subject import ANY, class_control, name_of, names_of, split_control
from app.markup import Bar, number_text, plain, table_html
from labkit.data.manifest import Manifest
from labkit.data.shards import read_rows
from labkit.plurals import counted, listed
from labkit.run_directory import RunDirectory

CLASSES_AT_ONCE = 10
ROWS_AT_ONCE = 200  # classes in the table of their numbers, and of mean images
FEW, MORE = 12, 48  # images of a class, at first and on request
GROUPS = 12  # of duplicates that are shown at first
OF_A_GROUP = 6


def scan_of(manifest: Manifest) -> DataScan | None:
    """Return what one pass over the images finds; until it is there, draw its progress and return None."""
    key = (manifest.directory, manifest.checksum)
    job = background.start(key, background.Job[DataScan](), lambda report: scan_data(manifest, report))
    return background.shown(job, "Reading the images", "scan")


@st.cache_data(max_entries=64, show_spinner=False)
def _rows(
    _manifest: Manifest, checksum: str, split: str, rows: tuple[int, ...]
) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    return read_rows(_manifest, split, np.array(rows, np.int64))


def read_images(
    manifest: Manifest, split: str, rows: NDArray[Any]
) -> tuple[NDArray[np.uint8], NDArray[np.int32]]:
    """Return images, uint8 [n, height, width, channels], and labels. Raises InputError for damaged files."""
    return _rows(manifest, f"{manifest.directory} {manifest.checksum}", split, tuple(map(int, rows)))


def samples(scan: DataScan) -> None:
    """Draw a grid of images of each class."""
    names = [str(name) for name in scan.names]
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        split = split_control(list(scan.splits), "samples-split", "train", bind=None)
        chosen = class_control(names)
        st.button(
            "Other images",
            icon=":material/casino:",
            on_click=_more,
            args=("samples-seed", 0, 1),
            help="Draws other images at random.",
        )
    found = scan.splits[split]
    if not len(found):
        st.info(f"The {plain(split)} split has no images.")
        return
    numbers, many = [chosen], len(names)
    if chosen == ANY:
        numbers = list(range(many))[page_of(many, CLASSES_AT_ONCE, "samples-page", many)]
    for number in numbers:
        _samples_of(scan, split, number, many=chosen != ANY)


def _more(name: str, first: int, by: int) -> None:
    """Show more of something, or others: what is kept under ``name`` begins with ``first`` and grows."""
    st.session_state[name] = st.session_state.get(name, first) + by


def _samples_of(scan: DataScan, split: str, number: int, many: bool) -> None:
    manifest, found = scan.manifest, scan.splits[split]
    rows = found.of_class(number)
    shown = st.session_state.get("samples-many", MORE) if many else FEW
    rng = np.random.default_rng((st.session_state.get("samples-seed", 0), number))
    some = np.sort(rng.permutation(rows)[:shown])
    st.html(_heading(scan.names[number], f"{len(some):,} of {len(rows):,} in {split}"))
    if not len(some):
        return
    with cards.readable():  # it may have been damaged since it was read
        images, labels = read_images(manifest, split, some)
        st.html(
            cards.strip(
                cards.Card(
                    image,
                    [names_of(manifest.classes, label), name_of(manifest, split, int(row))],
                    image_address(split, int(row)),
                )
                for image, label, row in zip(images, labels, some, strict=True)
            )
        )
    if many and len(rows) > len(some):
        st.button("More images", on_click=_more, args=("samples-many", MORE, MORE), icon=":material/add:")


def balance(scan: DataScan) -> None:
    """Draw the number of images of each class, the mean images, and the statistics of the pixels."""
    manifest = scan.manifest
    title = plain(manifest.classes[0]) if manifest.targets == "numbers" else "Class balance"
    st.markdown(f"#### {title}")
    many = len(scan.names)
    numbers = list(range(many))[page_of(many, ROWS_AT_ONCE, "balance-page", many)]
    names = [scan.names[number] for number in numbers]
    splits = zip(scan.splits.values(), PALETTE, strict=False)
    columns = [_bars(found, numbers, color) for found, color in splits]
    table = table_html(("Class", *scan.splits), zip(names, *columns, strict=True))
    st.html(f'<div class="lk-scroll" tabindex="0" role="region" aria-label="Class balance">{table}</div>')
    if manifest.multi_label:
        per_image = scan.splits["train"].labels.sum(axis=1)
        st.caption(
            "An image counts for each of its classes. Training images have "
            f"{per_image.mean():.2f} classes on average; {counted(int((per_image == 0).sum()), 'image')} "
            "of them none."
        )
    st.markdown("#### Mean images")
    st.caption(
        "The mean of all training images and of those above. A sharp one means that its images are alike."
    )
    train = scan.splits["train"]
    means = [("all images", train.mean_image)]
    means += [(name, mean) for name, mean in zip(names, train.class_means[numbers], strict=True)]
    st.html(cards.grid((cards.Card(np.rint(mean).astype(np.uint8), [name]) for name, mean in means), 104))
    st.markdown("#### Pixels of each channel")
    st.caption(
        "Mean and standard deviation of the pixels, from 0 to 1. The network gets (pixel − mean) / standard "
        "deviation, with the values of the training split."
    )
    st.dataframe(_statistics(scan), hide_index=True, key="data-statistics")


def _bars(found: SplitScan, numbers: list[int], color: str) -> list[Bar]:
    """Return a cell for each of these classes: how many images of the split it has."""
    counts, size = found.class_counts, max(len(found), 1)
    most = max(int(counts.max(initial=0)), 1)
    return [
        Bar(f"{count:,} ({number_text(count / size, '.1%')})", count / most, color)
        for count in counts[numbers].tolist()
    ]


def _statistics(scan: DataScan) -> list[dict[str, str]]:
    manifest = scan.manifest
    channels = ["red", "green", "blue"] if len(manifest.channel_mean) == 3 else ["grey"]
    rows = [
        {"Of": name}
        | {
            channel: f"{mean:.4f} ± {std:.4f}"
            for channel, mean, std in zip(channels, found.channel_mean, found.channel_std, strict=True)
        }
        for name, found in scan.splits.items()
        if len(found)
    ]
    used = zip(channels, manifest.channel_mean, manifest.channel_std, strict=True)
    return [*rows, {"Of": "used for standardization"} | {c: f"{m:.4f} ± {s:.4f}" for c, m, s in used}]


def source(manifest: Manifest) -> None:
    """Draw what the manifest records: splits, source, checksum, licence."""
    recorded = manifest.source
    kinds = {
        "generated": "drawn by labkit",
        "download": "downloaded",
        "archive": "read from an archive",
        "folder": "read from a folder",
        "images": "pictures of somebody's own",
        "examples": "given by a program",
        "npz": "read from a file of arrays",
        "tfrecords": "read from TFRecords",
        "corrected": "made by correcting",
        "fold": "a fold of",
    }
    published = {True: "yes, the published archive", False: "no, it differs from the published archives"}
    height, width, channels = manifest.image_shape
    what = "Numbers of a label" if manifest.targets == "numbers" else "Classes"
    rows = [
        ("Data set", manifest.dataset),
        ("Images", f"{width}×{height} pixels, {counted(channels, 'channel')}"),
        (what, f"{manifest.num_classes:,}{', several per image' if manifest.multi_label else ''}"),
        *((f"Split {name}", counted(split.count, "image")) for name, split in manifest.splits.items()),
        ("Source", f"{kinds.get(recorded['kind'], recorded['kind'])}: {recorded['location']}"),
        ("Checksum of the source", f"SHA-256 {recorded['sha256']}"),
        ("Checksum of the data set", f"SHA-256 {manifest.checksum}"),
        ("Seed of the split", str(manifest.seed)),
        ("Folder", str(manifest.directory)),
    ]
    if recorded["kind"] != "generated":
        unknown = "not known for a folder" if recorded["kind"] == "folder" else None
        rows += [
            ("Published", text) for text in [published.get(recorded["matches_published"], unknown)] if text
        ]
    known = {"kind", "location", "sha256", "matches_published", "counts", "asked", "lineage"}
    rows += [
        (name.capitalize().replace("_", " "), _in_words(value))
        for name, value in recorded.items()
        if name not in known and value not in (None, [], {})
    ]
    if recorded["kind"] == "generated":
        rows.append(("Licence", "labkit's own: it draws these images itself"))
    elif not {"licence", "license"} & recorded.keys():
        rows.append(("Licence", "not recorded; the publisher of the source knows it"))
    st.html(table_html((), rows))


def _in_words(value: Any) -> str:
    """Return an entry of a manifest's source as text: long lists and mappings are cut."""
    if isinstance(value, dict):
        value = [f"{name}: {one}" for name, one in value.items()]
    return listed([str(one) for one in value]) if isinstance(value, list) else str(value)


def duplicates(run: RunDirectory, scan: DataScan) -> None:
    """Draw the images that have the same pixels as another one."""
    found = find_duplicates(scan)
    st.caption(
        "Images with exactly the same pixels, by a hash of them. A test image that is also a training image "
        "makes the test accuracy too high."
    )
    if not len(found):
        total = sum(len(split) for split in scan.splits.values())
        st.success(f"None: all {total:,} images differ.", icon=":material/check_circle:")
        return
    images, differ = counted(sum(map(len, found.groups)), "image"), int(found.disagree.sum())
    st.write(
        f"{images} in {counted(len(found), 'group')} of equal pixels; in {differ:,} of the groups the labels "
        "differ."
    )
    table = [
        {"Images of": name}
        | {f"also in {other}": int(count) for other, count in zip(found.splits, row, strict=True)}
        for name, row in zip(found.splits, found.shared, strict=True)
    ]
    st.dataframe(table, hide_index=True, key="duplicate-counts")
    shown = st.session_state.get("duplicate-groups", GROUPS)
    with cards.readable():
        groups = [_duplicate_group(scan, found, group) for group in found.worst_first()[:shown]]
        marking.grid(scan.manifest, groups, 110, "duplicates-grid")
    marking.summary(run, scan.manifest)
    if shown < len(found):
        more = "duplicate-groups", GROUPS, GROUPS
        st.button("More duplicates", on_click=_more, args=more, icon=":material/add:")


def _duplicate_group(scan: DataScan, found: Duplicates, group: int) -> tuple[str, list[marking.Markable]]:
    """Return the heading and the cards of a group. Raises InputError if the images can't be read."""
    places, manifest = found.groups[group], scan.manifest
    every = [scan.splits[split].targets[index] for split, index in places]
    images, _ = read_images(manifest, places[0][0], np.array([places[0][1]]))
    # What most of the same images are; marks are for single classes only.
    usual = int(np.bincount(every).argmax()) if manifest.targets == "class" else 0
    note = "the labels differ" if found.disagree[group] else ""
    return _heading(f"{len(places):,} times the same image", note), [
        marking.Markable(
            cards.Card(
                images[0],
                [names_of(manifest.classes, label), name_of(manifest, split, index)],
                image_address(split, index),
            ),
            split,
            index,
            int(label) if manifest.targets == "class" else 0,
            usual,
        )
        for (split, index), label in zip(places[:OF_A_GROUP], every, strict=False)
    ]


def _heading(name: str, note: str) -> str:
    """Return the HTML of a heading for a class, with a note beside it."""
    return f'<div class="lk-heading">{html.escape(name)}<span>{html.escape(note)}</span></div>'
