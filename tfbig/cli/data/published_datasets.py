"""Public data sets as they are downloaded: what the folder should hold, its reader, and the recipes that train on it.

Nothing is downloaded here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tfbig import SourceError
from tfbig.cli.data import image_collections, slide_collections, volume_collections
from tfbig.cli.data.collection_tables import Found
from tfbig.cli.settings import choices

PANDA_RUN, CAMELYON_RUN = (
    f"big-layers-{name}-as-published" for name in ("panda-cosine", "camelyon17")
)


@dataclass(frozen=True)
class Recipe:
    """A recipe that goes with a data set.

    Attributes:
        name: Name of its file, without suffix.
        about: What it is.
        table: Table that it reads, without suffix; empty for the folder itself.
        of_run: Recipe of the run that it evaluates, or an empty text if it trains.
        run: Name of the run, if it is not that of the recipe.
    """

    name: str
    about: str
    table: str = ""
    of_run: str = ""
    run: str = ""


@dataclass(frozen=True)
class Collection:
    """A data set and its reader.

    Attributes:
        about: Description with its source.
        expected: Files that the folder should hold.
        read: Function from folder and seed to what is found.
        recipes: Recipes that go with it.
    """

    about: str
    expected: str
    read: Callable[[Path, int], Found]
    recipes: tuple[Recipe, ...]


def read(name: str, folder: str | Path, seed: int = 0) -> Found:
    """Return what is found of a data set.

    Args:
        name: One of `COLLECTIONS`.
        folder: Folder of the downloaded files.
        seed: Random seed of splits that are drawn.

    Raises:
        SourceError: There is no such folder, or a table with labels is missing or has other columns.
    """
    if not Path(folder).is_dir():
        raise SourceError(f"{folder}: no such folder. Expected:\n{COLLECTIONS[name].expected}")
    return COLLECTIONS[name].read(Path(folder), seed)


def _mil(name: str, about: str, table: str = "slides") -> Recipe:
    return Recipe(f"big-layers-{name}", f"Big-Layers, {about}", table)


EXPECTED = {
    "panda": (
        "  train.csv                 image_id,data_provider,isup_grade,gleason_score\n"
        "  train_images/ID.tiff      10616 slides\n"
        "  splits/{train,val,test}.csv   optional, slide_id: of Song et al. (2024)"
    ),
    "camelyon16": (
        "  **/normal_001.tif         159 slides\n  **/tumor_001.tif          111\n"
        "  **/test_001.tif           129\n  **/reference.csv          test_001,Tumor,...\n"
        "  **/*.csv                  optional, slide_id,label: corrected labels, e.g. of Ling et al. (2025)"
    ),
    "camelyon17": (
        "  **/patient_000_node_0.tif 1000 slides\n"
        "  **/stages.csv             patient,stage: patient_000_node_0.tif,negative (itc, micro, macro)\n"
        "  **/*.csv                  optional, slide_id,label[,split]: corrected labels, e.g. of Ling et al. (2025)"
    ),
    "tcga-prad": (
        "  **/TCGA-*-DX*.svs         diagnostic slides\n"
        "  clinical.tsv              of GDC: case_submitter_id, primary_ and secondary_gleason_grade, or\n"
        "                            cases.submitter_id, diagnoses.primary_ and diagnoses.secondary_gleason_grade\n"
        "  tcga_prad*.csv            optional, slide_id,label: grades by slide, in place of clinical.tsv"
    ),
    "tcga-nsclc": (
        "  LUAD/**/TCGA-*.svs        slides, diagnostic (DX) and frozen (TS, BS)\n  LUSC/**/TCGA-*.svs\n"
        "  gdc_sample_sheet*.tsv     optional, in place of the two folders"
    ),
    "imagenet-100": (
        "  train.X1/n01440764/*.JPEG and so on to train.X4, or train/n01440764/*.JPEG\n"
        "  val.X/n01440764/*.JPEG, or val/n01440764/*.JPEG"
    ),
    "imagenette": (
        "  imagenette2-320/train/n01440764/*.JPEG   ten folders\n"
        "  imagenette2-320/val/n01440764/*.JPEG"
    ),
    "qmnist": (
        "  **/qmnist-train-images-idx3-ubyte.gz and qmnist-train-labels-idx2-int.gz\n"
        "  **/qmnist-test-images-idx3-ubyte.gz and qmnist-test-labels-idx2-int.gz\n"
        "  or those of MNIST: train-images-idx3-ubyte.gz, train-labels-idx1-ubyte.gz, t10k-..., with or without .gz"
    ),
    "ultramnist": (
        "  train.csv                 id,digit_sum: of the competition\n  train/ID.jpeg             28000 images\n"
        "  or the files of MNIST, of which images are made: train-images-idx3-ubyte.gz and so on"
    ),
    "nnunet": (
        "  dataset.json              channel_names, labels, file_ending; or of the Decathlon modality, labels, "
        "training\n"
        "  imagesTr/CASE_0000.nii.gz a file for each channel, _0000, _0001, ...; of the Decathlon CASE.nii.gz with "
        "all\n"
        "  labelsTr/CASE.nii.gz      labels 0, 1, ... on the grid of the image\n"
        "  imagesTs/CASE_0000.nii.gz optional, cases to predict"
    ),
    "uci-har": (
        "  UCI HAR Dataset/train/Inertial Signals/body_acc_x_train.txt and eight others, train/y_train.txt\n"
        "  UCI HAR Dataset/test/Inertial Signals/body_acc_x_test.txt and eight others, test/y_test.txt"
    ),
}
"""Files that the folder of a data set should hold."""

RECIPES = {
    "panda": (
        _mil("panda-cosine-as-published", "first setting"),
        _mil("panda-cosine-as-coded", "first setting as its code has it"),
        _mil("panda-exponential-as-published", "second setting"),
        _mil("panda-frozen", "baseline with a frozen encoder"),
        Recipe("patchgd-panda-as-published", "PatchGD", "patchgd"),
        Recipe("whole-slides-panda", "whole slides, streamed without background", "slides"),
        Recipe("features-panda", "Big-Layers, baseline on features", "bags"),
    ),
    "camelyon16": (
        Recipe(
            "test-camelyon16",
            "all slides as external test of a run on CAMELYON17",
            "slides",
            CAMELYON_RUN,
        ),
        Recipe(
            CAMELYON_RUN,
            "training on CAMELYON16, with the settings for CAMELYON17",
            "slides",
            run="big-layers-camelyon16",
        ),
        Recipe("whole-slides-camelyon16", "whole slides, streamed without background", "slides"),
        Recipe("dtfd-original", "DTFD-MIL on features", "bags"),
        Recipe("transmil-original", "TransMIL on features", "bags"),
    ),
    "camelyon17": (
        _mil("camelyon17-as-published", "end to end"),
        _mil("camelyon17-as-coded", "end to end as its code has it"),
        _mil("camelyon17-frozen", "baseline with a frozen encoder"),
        Recipe("features-camelyon17", "Big-Layers, baseline on features", "bags"),
    ),
    "tcga-prad": (
        Recipe("test-tcga-prad", "external test of a run on PANDA", "slides", PANDA_RUN),
    ),
    "tcga-nsclc": (Recipe("patchgd-tcga-nsclc-as-published", "PatchGD", "slides"),),
    "imagenet-100": (Recipe("patchgd-imagenet100-as-published", "PatchGD", "images"),),
    "imagenette": (Recipe("abmil-acc-imagenette-as-published", "ABMIL-ACC, Imagenette-bags"),),
    "qmnist": (
        Recipe("abmil-acc-qmnist-as-published", "ABMIL-ACC, QMNIST-bags"),
        Recipe("abmil-acc-qmnist-as-coded", "ABMIL-ACC as its code has it"),
        Recipe("qmnist-bags-small", "a small one, for two cores"),
        Recipe("abmil-original", "bags of ten digits, as Ilse et al. (2018)"),
    ),
    "ultramnist": (
        Recipe("patchgd-ultramnist-as-published", "PatchGD, images made of digits"),
        Recipe("patchgd-ultramnist-competition", "PatchGD, images of the competition", "images"),
    ),
    "nnunet": (
        Recipe("volumes-whole", "a 3-D U-Net on whole volumes"),
        Recipe("volumes-patches", "the same network on crops"),
    ),
    "uci-har": (
        Recipe("patchgd-har-as-published", "PatchGD"),
        Recipe("patchgd-har-as-coded", "PatchGD with the network of its code"),
    ),
}
"""Recipes that go with a data set."""

COLLECTIONS = {
    name: Collection(about, EXPECTED[name], reader, RECIPES[name])
    for name, about in choices.COLLECTIONS.items()
    for reader in [
        (slide_collections.READERS | image_collections.READERS | volume_collections.READERS)[name]
    ]
}
