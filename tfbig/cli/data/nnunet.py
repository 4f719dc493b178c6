"""Data sets in the layout of nnU-Net, or of the Medical Segmentation Decathlon, which nnU-Net used before."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tfbig import SourceError
from tfbig.sources import VOLUME_SUFFIXES

FILE: Final = "dataset.json"
IGNORE: Final = "ignore"


@dataclass(frozen=True)
class Case:
    """A case of a data set.

    Attributes:
        name: Its name.
        images: Files of its channels; one file may hold several.
        labels: File of its labels, or None for a case to predict.
    """

    name: str
    images: tuple[Path, ...]
    labels: Path | None


@dataclass(frozen=True)
class VolumeSet:
    """A data set.

    Attributes:
        name: Its name.
        channels: Names of the channels, such as CT or T1.
        classes: Names of the labels 0, 1, ...
        cases: Cases with labels.
        others: Cases to predict.
        missing: Files that should be there, one line each.
    """

    name: str
    channels: tuple[str, ...]
    classes: tuple[str, ...]
    cases: tuple[Case, ...]
    others: tuple[Case, ...]
    missing: tuple[str, ...]


def read(folder: Path) -> VolumeSet:
    """Read the data set of a folder with `dataset.json`; no volume is opened.

    Raises:
        SourceError: `dataset.json` is missing, damaged or says what tfbig does not train, or there are no cases.
    """
    file = folder / FILE
    about = _json(file)
    channels, classes = _channels(about, file), _classes(about, file)
    if "file_ending" in about or "training" not in about:
        cases, missing = _by_name(folder, about, len(channels), file)
        ending = str(about.get("file_ending", ".nii.gz"))
        others = tuple(
            Case(name, images, None)
            for name, images in _channels_of(folder / "imagesTs", ending).items()
            if len(images) == len(channels)
        )
    else:
        cases, missing = _listed(folder, about, len(channels), file)
        others = _listed_tests(folder, about, len(channels))
    if not cases:
        raise SourceError(
            f"{file}: none of its cases has an image and labels; expected imagesTr/CASE_0000.nii.gz and "
            f"labelsTr/CASE.nii.gz. {missing[0] if missing else 'Check the folder.'}"
        )
    name = str(about.get("name") or folder.resolve().name)
    return VolumeSet(name, channels, classes, tuple(cases), others, tuple(missing))


def _json(file: Path) -> Mapping[str, Any]:
    """Read `dataset.json`."""
    try:
        about = json.loads(file.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise SourceError(
            f"{file}: no such file; expected the folder of a data set of nnU-Net, or a folder with a table volumes.csv "
            "(columns image and label). Check the path."
        ) from None
    except (OSError, ValueError) as error:
        raise SourceError(f"{file}: is not readable JSON ({error}). Copy it again.") from error
    if not isinstance(about, dict) or not isinstance(about.get("labels"), dict):
        raise SourceError(f"{file}: has no 'labels'; expected a table from names to numbers.")
    return about


def _channels(about: Mapping[str, Any], file: Path) -> tuple[str, ...]:
    """Read the names of the channels, in the order of their numbers."""
    named = about.get("channel_names", about.get("modality"))
    try:
        return tuple(str(named[str(n)]) for n in range(len(named)))
    except (TypeError, KeyError):
        raise SourceError(
            f"{file}: has no 'channel_names' or 'modality' for channels 0, 1, ...; expected such as "
            '{"0": "CT"}. Add it.'
        ) from None


def _classes(about: Mapping[str, Any], file: Path) -> tuple[str, ...]:
    """Read the names of the labels, in the order of their numbers.

    Raises:
        SourceError: They are regions, some are ignored, or they are not 0, 1, ...
    """
    labels = about["labels"]
    if all(str(key).isdecimal() for key in labels):  # of the Decathlon: from numbers to names
        labels = {str(name): int(number) for number, name in labels.items()}
    if IGNORE in labels:
        raise SourceError(
            f"{file}: has a label '{IGNORE}', for voxels that are not learned, which tfbig does not support. Use "
            "complete labels."
        )
    regions = [name for name, value in labels.items() if isinstance(value, list)]
    if regions:
        raise SourceError(
            f"{file}: label '{regions[0]}' is a region of several values, which tfbig does not train. Give each "
            "value one label."
        )
    try:
        by_number = {int(value): str(name) for name, value in labels.items()}
        names = tuple(by_number[n] for n in range(len(labels)))
    except (TypeError, ValueError, KeyError):
        raise SourceError(
            f"{file}: its labels are {dict(labels)}; expected the numbers 0, 1, 2, ... without gaps. Number them again."
        ) from None
    if len(names) < 2:
        raise SourceError(
            f"{file}: has {len(names)} label; expected the background and another one."
        )
    return names


def _by_name(
    folder: Path, about: Mapping[str, Any], count: int, file: Path
) -> tuple[list[Case], list[str]]:
    """Find the cases by the names of their files: `imagesTr/CASE_0000.nii.gz` and `labelsTr/CASE.nii.gz`."""
    ending = str(about.get("file_ending", ".nii.gz"))
    if ending not in VOLUME_SUFFIXES:
        raise SourceError(
            f"{file}: has the file_ending '{ending}'; expected one of {', '.join(VOLUME_SUFFIXES)}. Convert the files."
        )
    if isinstance(about.get("dataset"), dict):
        named = {
            name: (
                tuple(folder / path for path in each["images"]),
                folder / each["label"],
            )
            for name, each in about["dataset"].items()
        }
    else:
        images = _channels_of(folder / "imagesTr", ending)
        labels = {p.name[: -len(ending)]: p for p in _files(folder / "labelsTr", ending)}
        named = {
            name: (images.get(name, ()), labels.get(name, folder / "labelsTr" / f"{name}{ending}"))
            for name in sorted({*images, *labels})
        }
    cases, missing = [], []
    for name, (channels, label) in named.items():
        lacking = [str(path) for path in (*channels, label) if not path.exists()]
        if len(channels) != count:
            lacking.append(f"imagesTr/{name}_*{ending}: {len(channels)} of {count} channels")
        missing += lacking
        if not lacking:
            cases.append(Case(name, channels, label))
    return cases, missing


def _channels_of(folder: Path, ending: str) -> dict[str, tuple[Path, ...]]:
    """Find the files `CASE_0000.nii.gz`, `CASE_0001.nii.gz`, ... of a folder by case, while they have no gap."""
    found: dict[str, tuple[Path, ...]] = {}
    for path in _files(folder, ending):
        name, _, number = path.name[: -len(ending)].rpartition("_")
        if len(number) == 4 and number.isdecimal() and int(number) == len(found.get(name, ())):
            found[name] = (*found.get(name, ()), path)
    return found


def _files(folder: Path, ending: str) -> list[Path]:
    if not folder.is_dir():
        return []
    return sorted(p for p in folder.iterdir() if p.name.endswith(ending) and p.name[0] != ".")


def _listed(
    folder: Path, about: Mapping[str, Any], count: int, file: Path
) -> tuple[list[Case], list[str]]:
    """Find the cases of the list `training`."""
    cases, missing = [], []
    for number, entry in enumerate(about["training"]):
        if not isinstance(entry, dict) or not {"image", "label"} <= entry.keys():
            raise SourceError(f"{file}: entry {number} of 'training' has no image and label.")
        images, labels = _images(folder / str(entry["image"]), count), folder / str(entry["label"])
        lacking = [str(path) for path in (*images, labels) if not path.exists()]
        missing += lacking
        if not lacking:
            cases.append(Case(_case_name(images[0]), images, labels))
    return cases, missing


def _listed_tests(folder: Path, about: Mapping[str, Any], count: int) -> tuple[Case, ...]:
    """Find the cases of the list `test` whose files are there."""
    listed = [folder / str(path) for path in about.get("test", []) if isinstance(path, str)]
    found = [_images(path, count) for path in listed]
    return tuple(
        Case(_case_name(images[0]), images, None)
        for images in found
        if all(path.exists() for path in images)
    )


def _images(path: Path, count: int) -> tuple[Path, ...]:
    """Find a listed file, or those with the number of their channel before the suffix, as nnU-Net names them."""
    if path.exists():
        return (path,)
    suffix = next((each for each in VOLUME_SUFFIXES if path.name.endswith(each)), "")
    stem = path.name[: len(path.name) - len(suffix)]
    numbered = tuple(path.with_name(f"{stem}_{n:04}{suffix}") for n in range(count))
    return numbered if numbered[0].exists() else (path,)


def _case_name(path: Path) -> str:
    """The name of the case of an image."""
    name = next((path.name[: -len(s)] for s in VOLUME_SUFFIXES if path.name.endswith(s)), path.name)
    head, _, number = name.rpartition("_")
    return head if head and len(number) == 4 and number == "0000" else name
