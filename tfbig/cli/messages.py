"""Errors of the library in the words of the command line: flags for arguments of Python."""

from __future__ import annotations

from tfbig.errors import Advice, AdvisedError
from tfbig.units import counted

_ADVICE = {
    Advice.PIXEL_SIZE: "Use --slide-mpp {mpp}, or --mpp-of FILE, a CSV with columns wsi,mpp, or --level 0 instead of "
    "--mpp",
    Advice.STORED_PIXELS: "Use --level 0 for the pixels as they are, or resample the slide",
    Advice.PLANE: "Use --z 0, or another plane up to {last}, or --z max for the largest value at each pixel",
    Advice.CLASSES: "Name those that count with --outline-classes NAME",
    Advice.RAISE_DEVICE: "Raise --device-memory to {need}",
    Advice.LOWER_DEVICE: "Lower --device-memory (it is now half of what it was), use smaller images or a smaller "
    "batch, or end other processes that use the device",
    Advice.RAISE_HOST: "Raise --host-memory to {need}",
    Advice.LOWER_HOST: "Lower --host-memory to store less there, use smaller images, or end other programs that use "
    "memory",
    Advice.RAISE_DISK: "--disk",
    Advice.SMALLER_STRIPS: Advice.SMALLER_STRIPS.value,
    Advice.SMALLER_IMAGES: Advice.SMALLER_IMAGES.value,
    Advice.SMALLER_OR_NARROWER: Advice.SMALLER_IMAGES.value,
    Advice.CREATE_SCRATCH: "create it, or choose another with --scratch",
    Advice.CLEAR_SCRATCH: "Delete files, choose another directory with --scratch, or use less of it with --disk",
    Advice.SMALLER_PATCH: "Use smaller patches, or leave the slide out",
    Advice.PAD: "Use another --patch, or leave the image out",
    Advice.RASTERIO: "Use --reader rasterio",
    Advice.OPENSLIDE: "Install OpenSlide, and leave out --reader tifffile",
    Advice.PART_OF_ZARR: "Use {part} with --reader zarr, or copy it to a folder NAME.zarr",
    Advice.DARK: "Use tfbig tile --dark, and its tiles with --coords",
    Advice.NO_TISSUE: "Convert it first, or for tiles use --tissue none",
    Advice.OPEN_AS: "Use images of that size and of these channels",
    Advice.DTYPE: "Convert the image",
    Advice.NOT_UNIFIED: "Use --mode offload, which does not need it",
    Advice.PLAIN_KERAS: "Or use another network, or name a module with a rule by --custom",
}
"""What to do about an error, by flags; commands with further flags are in `_OF_COMMAND`."""
_PRECISION = {
    Advice.SMALLER_OR_NARROWER: "use smaller images, a smaller batch or --precision mixed_{store}"
}
_OF_COMMAND = {
    "plan": {
        Advice.SMALLER_OR_NARROWER: "use smaller images, a smaller batch or --store {store}",
    },
    "tile": {Advice.DARK: "Use --dark"},
    "train": _PRECISION,
    "evaluate": _PRECISION,
}
"""What to do by flags that only some commands have; a prediction has the precision of its model."""
LEAST_AGREEMENT = 0.9
"""Agreement of two methods from which on the tissue of a slide counts as certain."""
LOOK = "make tiles with tfbig tile, look at its pictures, and use them with --coords"
"""Advice on uncertain tissue for commands that make their tiles themselves."""


def in_flags(error: Exception, command: str = "train") -> str:
    """The text of an error, with flags of a command in place of arguments of Python."""
    if not isinstance(error, AdvisedError):
        return str(error)
    return error.worded(_ADVICE | _OF_COMMAND.get(command, {}))


def other_channels(found: int, expected: int) -> str:
    """Say what to do about images of other channels than those that a network was trained on."""
    if (found, expected) == (1, 3):
        return "Save the image in RGB, with the gray values in all three channels, or use a network for gray images."
    if found > expected:
        return f"Choose {counted(expected, 'channel')} with --channels."
    return f"Use images of {counted(expected, 'channel')}, or a network for {found}."


def uncertain_tissue(agreement: float, advice: str) -> str:
    """Warn if two methods find different tissue on a slide; empty if they agree.

    `agreement` is `Tissue.agreement`; `advice` says what to do.
    """
    if agreement >= LEAST_AGREEMENT:
        return ""
    return f"(uncertain: --tissue colour and otsu agree by {agreement:.0%} only; {advice})"
