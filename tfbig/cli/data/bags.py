"""Bags for `--task mil`: drawn shapes, digits, pictures, a folder with `bags.csv`, or tiles of slides."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import numpy as np

from tfbig import SourceError, mil
from tfbig.cli import settings as command_line
from tfbig.cli.data import cohort, splits, tile_coords
from tfbig.cli.data.splits import SPLITS, Data
from tfbig.datasets.digits import read_digits
from tfbig.mil import generate
from tfbig.sources import Filled, Subset, read_coords

COLUMNS = ("bag", "label", "split")
TILE, MPP, MIN_TISSUE = 256, 0.5, 0.6
"""Default size, micrometres per pixel and smallest share of tissue of tiles, as in `tfbig tile`."""


def add_flags(add):
    """Add the flags that choose the bags."""
    number, share = command_line.count, command_line.positive
    add(
        "--bags",
        choices=["shapes", "digits", "pictures", "folder", "slides"],
        default="shapes",
        help="what the bags are made of. shapes: drawn tiles, a bag with a ring is positive; digits: QMNIST-bags from "
        "the IDX files in --data; pictures: Imagenette-bags from --data/train/CLASS and --data/val/CLASS; "
        "folder: --data/bags.csv with columns bag, label, split; slides: tiles of slides, --data is a table "
        "with columns case_id, slide_id, label (default: %(default)s)",
    )
    add("--data", metavar="FOLDER", help="folder of digits, pictures or bags; table of slides")
    add(
        "--num-bags",
        nargs=3,
        type=number,
        default=[150, 30, 30],
        metavar=("TRAIN", "VAL", "TEST"),
        help="number of composed bags (default: 150 30 30)",
    )
    add(
        "--instances",
        type=number,
        default=20,
        help="instances of a composed bag (default: %(default)s)",
    )
    add(
        "--share",
        type=share,
        default=0.2,
        help="share of key-class instances in a positive bag (default: %(default)s)",
    )
    add(
        "--key",
        type=int,
        default=9,
        help="key class, from 0: a bag that contains it is positive (default: %(default)s)",
    )
    _add_tile_flags(add)
    add(
        "--classes",
        type=number,
        help="number of classes of bags.csv (default: the largest label + 1)",
    )


def _add_tile_flags(add):
    number, share = command_line.count, command_line.positive
    add(
        "--tile",
        type=number,
        help="rows and columns of an instance, in pixels (default: that of --coords; 256 for slides, 112 for pictures, "
        "24 for shapes)",
    )
    add(
        "--coords",
        metavar="FOLDER",
        help="folder with SLIDE.h5 of tfbig tile, CLAM or TRIDENT (default: find tiles as tfbig tile does)",
    )
    add(
        "--min-tissue",
        type=command_line.share,
        help=f"smallest share of tissue in a tile, 0 to 1 (default: that of --coords, else {MIN_TISSUE})",
    )
    cohort.add_flags(add)
    add(
        "--level",
        type=command_line.count_from_zero,
        help=f"resolution as a pyramid level instead, 0 is the finest (default: that of --coords, else --mpp {MPP})",
    )
    add(
        "--foreground",
        type=share,
        help="drop tiles with a smaller share of pixels with grey values from 3 to 230 (default: keep all)",
    )
    add(
        "--fill",
        action="store_true",
        help="fill up training bags smaller than --sample with white tiles",
    )
    add(
        "--augment",
        action="store_true",
        help="random blur, colours, flips and rotations, the same for all instances of a bag",
    )
    add(
        "--sample",
        type=share,
        help="instances drawn from a training bag: a number, or a share below 1 (default: all)",
    )
    add("--val-sample", type=share, help="instances drawn from a validation bag (default: all)")


def load(settings):
    """Return the data that `--bags` names."""
    loaders = {
        "shapes": _shapes,
        "digits": _digits,
        "pictures": _pictures,
        "folder": _folder,
        "slides": _slides,
    }
    data = loaders[settings.bags](settings)
    if settings.foreground:
        data = data.mapped(lambda part: _foreground(part, settings.foreground))
    if settings.fill and settings.sample and settings.sample >= 1:
        data = replace(data, train=_filled(data.train, int(settings.sample)))
    return data


def large_enough(data, smallest):
    """Return bags of `smallest` instances or more, which can be split into pseudo-bags; others are listed as failed.

    Args:
        data: Data of the run.
        smallest: Number of pseudo-bags.

    Raises:
        SourceError: All bags of a split are smaller.
    """

    def checked(part):
        fits = [bag.shape[0] >= smallest for bag in part.bags]
        reason = f"cannot be split into {smallest} pseudo-bags; lower --pseudo-bags to use it."
        too_small = [
            (bag.name, f"{bag.name}: has {bag.shape[0]} instances, which {reason}")
            for bag, fit in zip(part.bags, fits, strict=True)
            if not fit
        ]
        if not any(fits):
            raise SourceError(too_small[0][1])
        kept = tuple(bag for bag, fit in zip(part.bags, fits, strict=True) if fit)
        return mil.BagSet(kept, part.labels[fits], (*part.failed, *too_small))

    return data.mapped(checked)


def print_counts(data):
    """Print the bags, instances and classes of every split."""

    def of(part):
        sizes = [bag.shape[0] for bag in part.bags]
        return f"of {min(sizes)} to {max(sizes)} instances"

    splits.print_counts(data, "bags", of)


def _foreground(part, share):
    """Drop background tiles, and bags that have no others."""
    bags, labels, failed = [], [], list(part.failed)
    for bag, label in zip(part.bags, part.labels, strict=True):
        try:
            bags.append(mil.foreground(bag, share))
            labels.append(label)
        except SourceError as error:
            failed.append((bag.name, str(error)))
    if not bags:
        raise SourceError(failed[-1][1])
    return mil.BagSet(tuple(bags), np.array(labels), tuple(failed))


def _filled(part, count):
    bags = tuple(Filled(bag, max(count, bag.shape[0])) for bag in part.bags)
    return replace(part, bags=bags)


def _composed(pools, key, settings):
    """Compose the bags of every split from its own pool; `pools` lists `(instances, classes)`."""
    size = (settings.tile, settings.tile) if settings.tile else None
    sets = [
        generate.compose(
            instances,
            classes,
            key,
            number,
            settings.instances,
            settings.share,
            size=size,
            seed=settings.seed * 10 + i,
            name=split,
        )
        for i, (split, (instances, classes), number) in enumerate(
            zip(SPLITS, pools, settings.num_bags, strict=True)
        )
    ]
    return Data(*sets, classes=("negative", "positive"))


def _shapes(settings):
    pools = [generate.shapes(1500, settings.tile or 24, settings.seed * 10 + i) for i in range(3)]
    return _composed(pools, generate.SHAPES.index("ring"), settings)


def _digits(settings):
    """Use a third of the test digits for validation (Andersson et al. 2022, section 4)."""
    train = read_digits(_data_folder(settings), "train")
    instances, classes = read_digits(_data_folder(settings), "test")
    order = np.random.default_rng(settings.seed).permutation(len(classes))
    third = len(order) // 3
    val, test = (_subset(instances, classes, order[s]) for s in (np.s_[:third], np.s_[third:]))
    return _composed([train, val, test], settings.key, settings)


def _pictures(settings):
    """Read `DATA/train/CLASS/*`, a fifth of it for validation, and `DATA/val/CLASS/*` for testing."""
    folder, size = Path(_data_folder(settings)), (settings.tile or 112,) * 2
    instances, classes, names = generate.pictures(folder / "train", size)
    test, test_classes, test_names = generate.pictures(folder / "val", size)
    if names != test_names:
        raise SourceError(
            f"{folder}: train has classes {names}, val has {test_names}. Use the same folders in both."
        )
    if not 0 <= settings.key < len(names):
        raise SourceError(f"{folder}: has classes 0 to {len(names) - 1}; --key is {settings.key}.")
    order = np.random.default_rng(settings.seed).permutation(len(classes))
    fifth = len(order) // 5
    val, train = (_subset(instances, classes, order[s]) for s in (np.s_[:fifth], np.s_[fifth:]))
    return _composed([train, val, (test, test_classes)], settings.key, settings)


def _subset(instances, classes, places):
    return Subset(instances, places), classes[places]


def _folder(settings):
    """Read `bags.csv` of a folder: columns `bag` (a path in it), `label` (0, 1, ...), `split` (train, val, test)."""
    folder = Path(_data_folder(settings))
    table = folder / "bags.csv"
    rows = splits.read_table(table, COLUMNS)
    if settings.confine:
        splits.check_inside((folder / row["bag"] for row in rows), (folder,))
    num_classes = settings.classes or max(int(row["label"]) for row in rows) + 1
    settings.classes = num_classes  # saved, so that an evaluation uses the classes of the run
    sets = []
    for split in SPLITS:
        chosen = splits.of_split(rows, split, table)
        paths = [str(folder / row["bag"]) for row in chosen]
        sets.append(mil.read_bags(paths, [int(row["label"]) for row in chosen], num_classes))
    return Data(*sets, classes=tuple(str(i) for i in range(num_classes)))


def _slides(settings):
    """Read tiles of slides; slides that cannot be read or hold no tissue are skipped."""
    slides = cohort.read(settings)
    coords = _read_coords(settings, slides.rows) if settings.coords else {}
    _set_tiles(settings, coords)
    opener = cohort.Opener(settings)
    resolution = _resolution(settings)

    def tiles(path):
        if settings.coords is None:
            return opener.tiles(path, (settings.tile, settings.min_tissue))
        file = tile_coords.file_of(settings.coords, path)
        return opener.tiles(path, coords.get(file) or read_coords(file))

    def opened(rows):
        bags, labels, failed = cohort.open_rows(rows, tiles)
        read = mil.read_bags(bags, labels, len(slides.classes))
        return replace(read, failed=(*failed, *read.failed))

    data = cohort.load(settings, slides, opened)
    if settings.coords:
        _set_measured(settings, data.train.bags[0])
        for bag in (bag for split in SPLITS for bag in getattr(data, split).bags):
            file = tile_coords.file_of(settings.coords, bag.name)
            if set(tile_coords.resolution_of(coords[file])) <= {"level"}:
                tile_coords.check_pixels(file, bag.name, bag.mpp, resolution)
    return data


def _read_coords(settings, rows):
    """Return `{file: tiles}` of `--coords`, without files that are missing or damaged.

    Raises:
        SourceError: A flag contradicts what a file was made with, or files differ in it.
    """
    coords = {}
    for file in (tile_coords.file_of(settings.coords, row["path"]) for row in rows if row["path"]):
        with suppress(*cohort.UNREADABLE):  # named when the slide is opened
            coords[file] = read_coords(file)
    resolution, size = _resolution(settings), settings.tile
    for file, tiles in coords.items():
        tile_coords.check(file, tiles, resolution, size)
        resolution, size = resolution or tile_coords.resolution_of(tiles), tiles.size
    return coords


def _set_tiles(settings, coords):
    """Set what tiles are made with, where no flag says it: that of `--coords`, or the defaults of `tfbig tile`.

    It is saved with the run, so that predictions use the same.
    """
    first = next(iter(coords.values()), None)
    if first is not None:
        settings.tile, default = first.size, tile_coords.resolution_of(first)
        share = first.made_with.get("min_tissue", MIN_TISSUE)
    else:
        settings.tile, default = settings.tile or TILE, {"mpp": MPP}
        share = MIN_TISSUE
    if not _resolution(settings):
        vars(settings).update(default)
    if settings.min_tissue is None:
        settings.min_tissue = share


def _set_measured(settings, bag):
    """Set the micrometres per pixel to those of a bag if no flag and no file of `--coords` says a resolution."""
    if bag.mpp and not _resolution(settings):
        settings.mpp = round(sum(bag.mpp) / 2, 6)


def _resolution(settings):
    """Return the resolution that is asked for, such as `{"mpp": 0.5}`, or an empty dict."""
    values = {key: getattr(settings, key) for key in tile_coords.RESOLUTIONS}
    return {key: value for key, value in values.items() if value is not None}


def _data_folder(settings):
    if settings.data is None:
        raise SourceError(f"--bags {settings.bags} needs --data FOLDER.")
    return settings.data
