"""Small folders of public data sets, with the names, columns and quirks that they are published with."""

from __future__ import annotations

import gzip
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import tifffile
from cli_runs import write_table
from PIL import Image

COLOURS = (
    (130, 70, 160),
    (200, 60, 80),
    (60, 90, 170),
    (170, 90, 60),
    (90, 50, 90),
    (220, 120, 160),
)
"""Colour of the tissue of each class."""
SVS = "Aperio Image Library v11.2.1 \r\n{0}x{0} (256x256) JPEG/RGB Q=70|AppMag = 40|MPP = {1}"
SIGNALS = [f"{kind}_{axis}" for kind in ("total_acc", "body_acc", "body_gyro") for axis in "xyz"]
SYNSETS = (
    *("n01440764", "n02102040", "n02979186", "n03000684", "n03028079"),
    *("n03394916", "n03417042", "n03425413", "n03445777", "n03888257"),
)


def write_slide(path: Path, label: int, mpp: float = 0.5, side: int = 320) -> None:
    """Write a bright slide with a square of tissue in the colour of its class; an SVS file says its resolution."""
    rng = np.random.default_rng(len(path.name) + label)
    image = np.full((side, side, 3), 242, np.uint8)
    image[side // 8 : -side // 8, side // 8 : -side // 8] = COLOURS[label]
    image -= rng.integers(0, 20, image.shape, np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".svs":
        options: dict[str, object] = {"description": SVS.format(side, mpp), "metadata": None}
    else:
        options = {"resolution": (1e4 / mpp, 1e4 / mpp), "resolutionunit": "CENTIMETER"}
    tifffile.imwrite(path, image, photometric="rgb", tile=(128, 128), **options)


def write_lines(path: Path, *lines: str) -> None:
    """Write a text file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")


def panda(folder: Path, per_grade: int = 2, splits: bool = True) -> Path:
    """PANDA: slides of two centres at 20 x, without a split or with that of Song et al., which drops a noisy one."""
    rows, of_split = [], {"train": [], "val": [], "test": []}
    for number in range(6 * per_grade):
        grade, name = number % 6, f"{number:032x}"
        centre = ("karolinska", "radboud")[number // 6 % 2]
        score = ("negative" if centre == "radboud" else "0+0") if grade == 0 else "3+4"
        rows.append(
            {"image_id": name, "data_provider": centre, "isup_grade": grade, "gleason_score": score}
        )
        write_slide(
            folder / "train_images" / f"{name}.tiff", grade, (0.5032, 0.486)[number // 6 % 2]
        )
        of_split[("train", "val", "test")[0 if number < 6 else 1 + number % 2]].append(name)
    write_table(folder / "train.csv", rows)
    if splits:
        of_split["test"].pop()
        for split, names in of_split.items():
            write_lines(
                folder / "splits" / f"{split}.csv",
                "slide_id,isup_grade",
                *(f"{n},0" for n in names),
            )
    return folder


def camelyon16(folder: Path, slides: Sequence[int] = (12, 10, 4)) -> Path:
    """CAMELYON16: training slides by kind, test slides with `reference.csv`, and masks that are named as slides."""
    for kind, label, count in zip(("normal", "tumor", "test"), (0, 1, 0), slides, strict=True):
        part = "testing/images" if kind == "test" else f"training/{kind}"
        for number in range(1, count + 1):
            kind_label = number % 2 if kind == "test" else label
            write_slide(folder / part / f"{kind}_{number:03}.tif", kind_label, 0.243, 640)
    write_slide(folder / "masks" / "tumor_001.tif", 0)
    lines = [
        f"test_{n:03},Tumor,IDC,Macro" if n % 2 else f"test_{n:03},Normal,None,None"
        for n in range(1, slides[2] + 1)
    ]
    write_lines(folder / "testing" / "reference.csv", *lines)
    return folder


def camelyon17(folder: Path, patients: int = 12, corrected: bool = False) -> Path:
    """CAMELYON17: five slides of each patient; stages of training patients only, or corrected labels of all slides."""
    stages, labels = ["patient,stage"], ["slide_id,label,split"]
    names = ("negative", "itc", "negative", "micro", "macro")
    for patient in (*range(patients), 100, 101):
        if patient < 100:
            stages.append(f"patient_{patient:03}.zip,pN1(mi)")
        for node in range(2 if patient >= 100 else 5):
            name, stage = f"patient_{patient:03}_node_{node}", names[(node + patient) % 5]
            part = "testing" if patient >= 100 else f"training/center_{patient % 5}"
            write_slide(
                folder / part / "patients" / f"{name}.tif", int(stage != "negative"), 0.243, 640
            )
            split = "test" if patient >= 100 else ("train", "val")[node == 4]
            labels.append(f"{name},{int(stage != 'negative')},{split}")
            if patient < 100:
                stages.append(f"{name}.tif,{stage}")
    write_lines(folder / "training" / "stages.csv", *stages)
    if corrected:
        write_lines(folder / "slides_split.csv", *labels[:-1])  # one slide is left out
    return folder


def tcga_prad(folder: Path, new_names: bool = False, cases: int = 6) -> Path:
    """TCGA-PRAD of GDC: a folder for each file, several slides of a patient, a line for each treatment."""
    columns = ["case_submitter_id", "primary_gleason_grade", "secondary_gleason_grade"]
    if new_names:
        groups = ("cases.submitter_id", "diagnoses.primary_gleason_grade")
        columns = [*groups, "diagnoses.secondary_gleason_grade"]
    lines = ["\t".join([*columns, "treatment_type"])]
    patterns = (("3", "3"), ("3", "4"), ("4", "3"), ("4", "4"), ("5", "4"), None)
    for number in range(cases):
        case, pattern = f"TCGA-2A-{number:04}", patterns[number % 6]
        grades = [f"Pattern {p}" for p in pattern] if pattern else ["'--", "'--"]
        lines += ["\t".join([case, *grades, kind]) for kind in ("Radiation", "Pharmaceutical")]
        for slide in ("DX1", "DX2", "TS1")[number % 2 :]:
            sample = "01A-01" if slide == "TS1" else "01Z-00"
            name = f"{case}-{sample}-{slide}.{number:08X}-ABCD.svs"
            write_slide(folder / f"uuid-{number}-{slide}" / name, number % 6, 0.25, 400)
    write_lines(folder / "clinical.tsv", *lines)
    return folder


def tcga_nsclc(folder: Path, cases: int = 10, sheet: bool = False) -> Path:
    """TCGA-LUAD and -LUSC: diagnostic slides, frozen sections, and one of normal tissue; by folder or sample sheet."""
    lines = ["File ID\tFile Name\tData Type\tProject ID\tCase ID\tSample Type"]
    for label, project in enumerate(("TCGA-LUAD", "TCGA-LUSC")):
        for number in range(cases):
            case = f"TCGA-{55 - label}-{number:04}"
            slides = ["01Z-00-DX1", "01A-01-TS1", "01A-01-BS1"][: 1 + number % 3]
            slides += ["11A-01-TS1"] if number == 0 else []
            for slide in slides:
                name = f"{case}-{slide}.{number:08x}-abcd.svs"
                place = folder / ("" if sheet else project) / f"uuid-{label}-{number}-{slide}"
                write_slide(place / name, label, 0.25, 256)
                lines.append(f"uuid\t{name}\tSlide Image\t{project}\t{case}\tPrimary Tumor")
    if sheet:
        write_lines(folder / "gdc_sample_sheet.2024-05-01.tsv", *lines)
    return folder


def write_picture(
    path: Path, label: int, mode: str = "RGB", side: tuple[int, int] = (40, 56)
) -> None:
    """Write a JPEG of noise in the colour of its class."""
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(label)
    pixels = rng.integers(0, 60, (*side, 3)) + np.array(COLOURS[label % 6]) // 2
    Image.fromarray(pixels.astype(np.uint8)).convert(mode).save(path, "JPEG")


def imagenet100(folder: Path, parts: bool = True, classes: int = 4) -> Path:
    """ImageNet-100: four parts of the training pictures as one set ships, or one; some pictures are gray or CMYK."""
    for label in range(classes):
        name = SYNSETS[label]
        train = f"train.X{1 + label % 4}" if parts else "train"
        for number in range(10):
            mode = {0: "L", 1: "CMYK"}.get(number, "RGB")
            write_picture(folder / train / name / f"{name}_{number}.JPEG", label, mode)
        for number in range(2):
            path = (
                folder
                / ("val.X" if parts else "val")
                / name
                / f"ILSVRC2012_val_{label}{number:07}.JPEG"
            )
            write_picture(path, label)
    if parts:
        write_lines(folder / "Labels.json", "{}")
    return folder


def imagenette(folder: Path, train: int = 12, val: int = 3) -> Path:
    """Imagenette: the folder of its archive, with `noisy_imagenette.csv` beside the classes."""
    root = folder / "imagenette2-320"
    for part, count in (("train", train), ("val", val)):
        for label, name in enumerate(SYNSETS):
            for number in range(count):
                mode = "L" if number == 1 else "RGB"
                write_picture(root / part / name / f"{name}_{number}.JPEG", label, mode)
    write_lines(root / "noisy_imagenette.csv", "path,noisy_labels_0,noisy_labels_1,is_valid")
    return folder


def write_idx(path: Path, array: np.ndarray) -> None:
    """Write an IDX file, gzipped if its suffix is `.gz`."""
    code = {"u1": 0x08, "i4": 0x0C}[array.dtype.str[1:]]
    head = bytes([0, 0, code, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    data = head + array.astype(array.dtype.newbyteorder(">")).tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)


def digits(folder: Path, names: Sequence[str], ending: str = "", count: int = 200) -> None:
    """Write digits and their classes, 0 to 9 in turn; `names` are the starts of training and test files."""
    for seed, name in enumerate(names):
        classes = np.arange(count) % 10
        pixels = np.random.default_rng(seed).integers(0, 80, (count, 28, 28), np.uint8)
        pixels[:, 4:24, 4:24] += (12 * classes).astype(np.uint8)[:, None, None]
        write_idx(folder / f"{name}-images-idx3-ubyte{ending}", pixels)
        if name.startswith("qmnist"):
            table = np.zeros((count, 8), np.int32)
            table[:, 0] = classes
            write_idx(folder / f"{name}-labels-idx2-int{ending}", table)
        else:
            write_idx(folder / f"{name}-labels-idx1-ubyte{ending}", classes.astype(np.uint8))


def qmnist(folder: Path, ending: str = ".gz") -> Path:
    """QMNIST in the folder that torchvision makes."""
    digits(folder / "QMNIST" / "raw", ("qmnist-train", "qmnist-test"), ending)
    return folder


def mnist(folder: Path, ending: str = "") -> Path:
    """MNIST, of which UltraMNIST is made."""
    digits(folder, ("train", "t10k"), ending)
    return folder


def ultramnist(folder: Path) -> Path:
    """UltraMNIST as its competition ships it: ten images of each of some sums, and unlabelled test images."""
    rows = []
    for number in range(280):
        name = f"{number:07x}"
        rows.append({"id": name, "digit_sum": number % 28})
        write_picture(folder / "train" / f"{name}.jpeg", number % 28, "L", (40, 40))
    write_table(folder / "train.csv", rows)
    write_picture(folder / "test" / "fffffff.jpeg", 0, "L")
    write_lines(folder / "sample_submission.csv", "id,digit_sum", "fffffff,0")
    return folder


def uci_har(folder: Path, train: int = 60, test: int = 18) -> Path:
    """UCI HAR in the folder of its archive."""
    rng = np.random.default_rng(0)
    for part, count in (("train", train), ("test", test)):
        place = folder / "UCI HAR Dataset" / part
        (place / "Inertial Signals").mkdir(parents=True)
        for name in SIGNALS:
            signals = rng.normal(size=(count, 128))
            np.savetxt(place / "Inertial Signals" / f"{name}_{part}.txt", signals, "%.7e")
        np.savetxt(place / f"y_{part}.txt", np.arange(count) % 6 + 1, fmt="%d")
    return folder


FOLDERS: dict[str, Callable[[Path], Path]] = {
    "panda": panda,
    "camelyon16": camelyon16,
    "camelyon17": camelyon17,
    "tcga-prad": tcga_prad,
    "tcga-nsclc": tcga_nsclc,
    "imagenet-100": imagenet100,
}
"""Writer of a small folder of each data set."""
