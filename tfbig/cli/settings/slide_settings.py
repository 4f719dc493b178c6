"""Settings of the commands over many slides: `tile` and `predict`."""

from __future__ import annotations

from dataclasses import dataclass

from tfbig.choices import UNET_STRIDE
from tfbig.cli.settings import choices
from tfbig.cli.settings import value_types as types
from tfbig.cli.settings.background_settings import BackgroundSettings, OutlineSettings
from tfbig.cli.settings.channel_settings import ChannelSettings
from tfbig.cli.settings.data_settings import EdgeSettings
from tfbig.cli.settings.flag import ENVIRONMENT, REQUIRED, THIS_START, flag
from tfbig.cli.settings.reader_settings import ReaderSettings
from tfbig.cli.settings.run_settings import MemorySettings


@dataclass(frozen=True, kw_only=True)
class CustomCode:
    """Code of a model."""

    custom: tuple[str, ...] = flag(
        (),
        nargs="+",
        metavar="MODULE",
        help="Python modules, in the current folder or installed, that register custom layers of the model "
        "(keras.saving.register_keras_serializable); their code is run",
    )


@dataclass(frozen=True, kw_only=True)
class SlideSettings(ReaderSettings, ChannelSettings):
    """Slides of a command, and how they are processed."""

    slides: tuple[str, ...] = flag(
        REQUIRED,
        exists="file or folder",
        kind=ENVIRONMENT,
        positional=True,
        nargs="+",
        metavar="SLIDE",
        help="slides, folders of slides, or tables of slides, *.csv with a column slide_id and optional path",
    )
    out: str = flag(
        REQUIRED, kind=ENVIRONMENT, metavar="DIR", help="folder for the results; created if needed"
    )
    shard: str | None = flag(
        kind=ENVIRONMENT,
        type=types.shard,
        metavar="I/N",
        help="process only every N-th slide, starting at the I-th (0 to N - 1), e.g. in job arrays: "
        "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT; all shards use the same --out",
    )
    dask: str | None = flag(
        kind=ENVIRONMENT,
        metavar="ADDRESS",
        help="process slides on the Dask cluster with this scheduler; 'local' uses the cores of this machine "
        "(pip install 'tfbig[dask]')",
    )
    strict: bool = flag(False, kind=ENVIRONMENT, help="stop at the first slide that fails")
    quiet: bool = flag(False, kind=THIS_START, help="no progress bars")
    dry_run: bool = flag(False, kind=THIS_START, help="print what would be done; write nothing")
    config: str | None = flag(
        kind=THIS_START,
        metavar="FILE",
        help="YAML file of flags (device_memory: 512MB), such as config.yaml of a run, or a recipe that is installed "
        "with tfbig, such as recipes/abmil-original.yaml; flags on the command line win",
    )


@dataclass(frozen=True, kw_only=True)
class TileSizeSettings:
    """Size of tiles."""

    tile: int = flag(
        256,
        type=types.count,
        help="rows and columns of a tile, in pixels at the resolution of the tiles (default: 256)",
    )
    overlap: int = flag(
        0, type=types.count_from_zero, help="pixels that neighbouring tiles share (default: 0)"
    )


@dataclass(frozen=True, kw_only=True)
class TileSettings(SlideSettings, TileSizeSettings, OutlineSettings, EdgeSettings):
    """Settings of `tfbig tile`."""

    mpp: float | None = flag(help="resolution of tiles in micrometres per pixel (default: 0.5)")
    level: int | None = flag(
        help="resolution as a pyramid level instead, 0 is the finest (default: --mpp 0.5)"
    )
    tissue: str = flag(
        "colour",
        type=types.tissue,
        path=True,
        not_paths=choices.TISSUE,
        metavar="METHOD",
        help="how tissue is found. colour: other colour than the glass, at 8 um per pixel; otsu: threshold of the "
        "saturation, at 8 um per pixel; grey: grey values from 3 to 230, at 8 um per pixel; grey-tiles: the same on "
        "the pixels of each tile, which reads the whole slide; none: keep all tiles; or a GeoJSON file of outlines, or "
        "a folder with SLIDE.geojson, such as one that this command wrote (default: colour)",
    )
    outline_origin: str | None = "scanned"
    dark: bool = flag(False, help="the background is dark, as in fluorescence")
    min_tissue: float = flag(
        0.6,
        type=types.share,
        help="smallest share of tissue in a tile, 0 to 1 (default: 0.6)",
    )
    min_sharpness: float | None = flag(
        type=types.positive,
        help="discard tiles with a smaller variance of the Laplacian of their grey values, which are out of focus; "
        "e.g. 20 (default: keep all)",
    )
    max_pen: float | None = flag(
        type=types.share,
        help="discard tiles with a larger share of pen marks, 0 to 1, e.g. 0.05 (default: keep all)",
    )


@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """The model of a prediction."""

    model: str = flag(
        REQUIRED,
        exists="file or folder",
        positional=True,
        metavar="MODEL",
        help="run folder of train, or .keras file; from images to masks or classes, from volumes to masks, or from "
        "bags of tiles or features to classes, or to what --target of the run was",
    )


@dataclass(frozen=True, kw_only=True)
class InputSettings:
    """Input of the network."""

    input: str | None = flag(
        choices=[*choices.INPUT_CHANNELS, choices.BANDS],
        help="channels that the network expects; inverted-gray: white is 0; bands: all bands of a satellite scene as "
        "they are, whose mask is a cloud-optimised GeoTIFF (default: of the run, else by its channels)",
    )


@dataclass(frozen=True, kw_only=True)
class MaskSettings:
    """Classes, and how masks are predicted."""

    class_names: tuple[str, ...] | None = flag(
        was=("classes",),
        nargs="+",
        metavar="NAME",
        help="names of the classes (default: of the run, else numbers)",
    )
    pad_to: int | None = flag(
        was=("stride",),
        type=types.count,
        help="masks: pad rows and columns of slides to multiples of this many pixels "
        f"(default: {UNET_STRIDE} for the gigapixel U-Net of a run, else 32)",
    )
    threshold: float = flag(
        0.5,
        type=float,
        help="masks: probability above which a pixel is of class 1, for networks with one output (default: 0.5)",
    )
    smallest: float = flag(
        16,
        type=float,
        help="masks: ignore regions of fewer pixels in the reduced mask from which outlines are drawn "
        "(default: 16)",
    )
    probabilities: bool = flag(
        False,
        help="masks: also write NAME_probabilities.ome.tif; of scenes, bands of the mask in percent",
    )
    instances: bool = flag(
        False,
        help="masks: the two outputs of the network are the foreground and the distance from the border of an "
        "instance, each 0 to 1; number the instances, outline and measure them (default: for runs of --task "
        "instances)",
    )
    marker_threshold: float | None = flag(
        type=types.share,
        help="instances: distance above which a pixel is part of a marker, from which an instance grows (default: of "
        "the run, else 0.5)",
    )
    orientation: str | None = flag(
        choices=[choices.STORED],
        help="volumes: stored: do not turn them to the orientation of the run, for files that do not say how they are "
        "oriented and are stored as it is (default: turn them)",
    )
    labels: str | None = flag(
        metavar="NAME",
        help="masks: also write them as labels/NAME of OME-Zarr: into the slide itself if it is OME-Zarr, else into "
        "SLIDE.zarr in --out",
    )


@dataclass(frozen=True, kw_only=True)
class BagTileSettings(CustomCode):
    """Tiles of a slide, and custom code."""

    coords: str | None = flag(
        exists="folder",
        metavar="FOLDER",
        help="bags: folder with SLIDE.h5 of tfbig tile, CLAM or TRIDENT (default: find tiles as tfbig tile does)",
    )
    min_tissue: float | None = flag(
        type=types.share,
        help="bags: smallest share of tissue in a tile, 0 to 1 (default: of the run, else 0.6)",
    )


@dataclass(frozen=True, kw_only=True)
class PredictSettings(
    ModelSettings,
    SlideSettings,
    InputSettings,
    MaskSettings,
    BagTileSettings,
    BackgroundSettings,
    MemorySettings,
):
    """Settings of `tfbig predict`."""

    slides: tuple[str, ...] = flag(
        REQUIRED,
        help="slides, folders of slides, or tables of slides, *.csv with a column slide_id and optional path; for a "
        "network of volumes NIfTI or NRRD files, folders of them or of a DICOM series",
    )
    mpp: float | None = flag(help="resolution of the network's input in micrometres per pixel")
    level: int | None = flag(
        help="resolution as a pyramid level instead, 0 is the finest (default: the resolution of the run, else 0; "
        "bags: --mpp 0.5)"
    )
