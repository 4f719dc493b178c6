"""Bags for `--task mil`: drawn shapes, digits, pictures, or a folder of one's own with its `bags.csv`."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from tfbig import SourceError, mil
from tfbig.cli import settings as command_line
from tfbig.cli.data import cohort, splits
from tfbig.cli.data.splits import SPLITS, Data
from tfbig.datasets.digits import read_digits
from tfbig.mil import generate
from tfbig.sources import Filled, Subset, read_coords
from tfbig.sources.slides.slide import title_of

COLUMNS = ("bag", "label", "split")
TILE, MPP = 256, 0.5
"""Of tiles of slides, where nothing is said: those of `tfbig tile`."""


def add_flags(add):
    """Flags that say which bags."""
    number, share = command_line.count, command_line.positive
    add(
        "--bags",
        choices=["shapes", "digits", "pictures", "folder", "slides"],
        default="shapes",
        help="shapes: drawn tiles, a bag with a ring is positive; digits: QMNIST-bags from the IDX "
        "files of --data; pictures: Imagenette-bags from --data/train/CLASS and --data/val/CLASS; "
        "folder: --data/bags.csv with columns bag, label, split; slides: tiles of the slides of --data, a table "
        "with columns case_id, slide_id, label (default: %(default)s)",
    )
    add("--data", metavar="FOLDER", help="where digits, pictures or bags are")
    add(
        "--num-bags",
        nargs=3,
        type=number,
        default=[150, 30, 30],
        metavar=("TRAIN", "VAL", "TEST"),
        help="bags that are composed (default: 150 30 30)",
    )
    add("--instances", type=number, default=20, help="of a composed bag (default: %(default)s)")
    add(
        "--share",
        type=share,
        default=0.2,
        help="of the instances of a positive bag that are of the key class (default: %(default)s)",
    )
    add("--key", type=int, default=9, help="class of the keys (default: %(default)s)")
    add("--tile", type=number, help="rows and columns of an instance (default of slides: 256)")
    add(
        "--coords",
        metavar="FOLDER",
        help="SLIDE.h5 of tfbig tile, CLAM or TRIDENT; without it tiles are found as tfbig tile does",
    )
    add(
        "--min-tissue",
        type=command_line.positive,
        default=0.6,
        help="share of a tile that must be tissue (default: 0.6)",
    )
    cohort.add_flags(add)
    add(
        "--foreground",
        type=share,
        help="tiles are kept of which at least this share is grey between 3 and 230",
    )
    add("--fill", action="store_true", help="white tiles in training bags smaller than --sample")
    add("--augment", action="store_true", help="blur, colours, flips, turns: one set for a bag")
    add(
        "--sample",
        type=share,
        help="instances of a training bag: a number, or a share below 1",
    )
    add("--val-sample", type=share, help="the same of a validation bag")
    add("--classes", type=number, help="of bags.csv (default: the largest label and 1)")


def load(settings):
    """The data that `--bags` names."""
    loaders = {
        "shapes": _shapes,
        "digits": _digits,
        "pictures": _pictures,
        "folder": _folder,
        "slides": _slides,
    }
    data = loaders[settings.bags](settings)
    if settings.foreground:
        data = data.mapped(lambda found: _foreground(found, settings.foreground))
    if settings.fill and settings.sample and settings.sample >= 1:
        data = replace(data, train=_filled(data.train, int(settings.sample)))
    return data


def large_enough(data, least):
    """Bags of `least` instances or more, which can be split into pseudo-bags; the others are named and left out."""

    def checked(found):
        fits = [bag.shape[0] >= least for bag in found.bags]
        reason = f"cannot be split into {least} pseudo-bags; lower --pseudo-bags to use it."
        small = [
            (bag.name, f"{bag.name}: has {bag.shape[0]} instances, which {reason}")
            for bag, fit in zip(found.bags, fits, strict=True)
            if not fit
        ]
        if not any(fits):
            raise SourceError(small[0][1])
        kept = tuple(bag for bag, fit in zip(found.bags, fits, strict=True) if fit)
        return mil.BagSet(kept, found.labels[fits], (*found.failed, *small))

    return data.mapped(checked)


def print_counts(data):
    """Bags, instances and classes of every split; what was left out goes to standard error."""

    def of(found):
        sizes = [bag.shape[0] for bag in found.bags]
        return f"of {min(sizes)} to {max(sizes)} instances"

    splits.print_counts(data, "bags", of)


def _foreground(found, share):
    """The tiles that are no background; bags without any are left out."""
    bags, labels, failed = [], [], list(found.failed)
    for bag, label in zip(found.bags, found.labels, strict=True):
        try:
            bags.append(mil.foreground(bag, share))
            labels.append(label)
        except SourceError as error:
            failed.append((bag.name, str(error)))
    if not bags:
        raise SourceError(failed[-1][1])
    return mil.BagSet(tuple(bags), np.array(labels), tuple(failed))


def _filled(found, count):
    bags = tuple(Filled(bag, max(count, bag.shape[0])) for bag in found.bags)
    return replace(found, bags=bags)


def _composed(pools, key, settings):
    """Bags of every split, each from a pool of its own: `pools` lists `(instances, classes)`."""
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
    """A third of the test digits validates (Andersson et al. 2022, section 4)."""
    train = read_digits(_needed(settings), "train")
    instances, classes = read_digits(_needed(settings), "test")
    order = np.random.default_rng(settings.seed).permutation(len(classes))
    third = len(order) // 3
    val, test = (_part(instances, classes, order[s]) for s in (np.s_[:third], np.s_[third:]))
    return _composed([train, val, test], settings.key, settings)


def _pictures(settings):
    """`DATA/train/CLASS/*` and `DATA/val/CLASS/*`; a fifth of the former validates, the latter tests."""
    folder, size = Path(_needed(settings)), (settings.tile or 112,) * 2
    instances, classes, names = generate.pictures(folder / "train", size)
    test, test_classes, test_names = generate.pictures(folder / "val", size)
    if names != test_names:
        raise SourceError(f"{folder}: train has classes {names}, val has {test_names}.")
    if not 0 <= settings.key < len(names):
        raise SourceError(f"{folder}: has classes 0 to {len(names) - 1}; --key is {settings.key}.")
    order = np.random.default_rng(settings.seed).permutation(len(classes))
    fifth = len(order) // 5
    val, train = (_part(instances, classes, order[s]) for s in (np.s_[:fifth], np.s_[fifth:]))
    return _composed([train, val, (test, test_classes)], settings.key, settings)


def _part(instances, classes, places):
    return Subset(instances, places), classes[places]


def _folder(settings):
    """`bags.csv` of a folder: columns `bag` (a path in it), `label` (0, 1, ...), `split` (train, val, test)."""
    folder = Path(_needed(settings))
    table = folder / "bags.csv"
    rows = splits.read_table(table, COLUMNS)
    if settings.confine:
        splits.check_inside((folder / row["bag"] for row in rows), (folder,))
    num_classes = settings.classes or max(int(row["label"]) for row in rows) + 1
    settings.classes = num_classes  # saved, so that a run judges other bags by its own classes
    sets = []
    for split in SPLITS:
        chosen = splits.of_split(rows, split, table)
        paths = [str(folder / row["bag"]) for row in chosen]
        sets.append(mil.read_bags(paths, [int(row["label"]) for row in chosen], num_classes))
    return Data(*sets, classes=tuple(str(i) for i in range(num_classes)))


def _slides(settings):
    """Tiles of slides; a slide that cannot be read or holds no tissue is left out."""
    known = cohort.read(settings)
    if settings.mpp is None and settings.magnification is None and settings.coords is None:
        settings.mpp = MPP
    opener = cohort.Opener(settings)
    found = settings.tile or TILE, settings.min_tissue

    def tiles(path):
        if settings.coords is None:
            return opener.tiles(path, found)
        return opener.tiles(path, read_coords(Path(settings.coords) / f"{title_of(path)}.h5"))

    def opened(rows):
        bags, labels, failed = cohort.opened(rows, tiles)
        read = mil.read_bags(bags, labels, len(known.classes))
        return replace(read, failed=(*failed, *read.failed))

    data = cohort.load(settings, known, opened)
    mpp = data.train.bags[0].mpp
    settings.tile = data.train.bags[0].size  # saved, so that predictions see the same
    if settings.coords and mpp:
        settings.mpp = round(sum(mpp) / 2, 6)
    return data


def _needed(settings):
    if settings.data is None:
        raise SourceError(f"--bags {settings.bags} needs --data FOLDER.")
    return settings.data
