"""Exceptions defined by tfbig, all with one base class."""

from collections.abc import Mapping
from enum import Enum
from typing import Any


class Advice(Enum):
    """Advice about an error, in the words of Python; the command line words it in its flags.

    Several pieces of advice are joined by "or" into the sentence that ends the message.
    """

    PIXEL_SIZE = "Pass mpp={mpp} to open_slide"
    STORED_PIXELS = "Pass level=0 to use the pixels as they are, or resample the slide"
    PLANE = "Pass z=0, or another plane up to {last}, or z='max' for the largest value at each pixel to open_slide"
    CLASSES = "Pass classes=('NAME', ...) of OutlineRule: the names of the classes that count"
    RAISE_DEVICE = "Raise `device` to {need}"
    LOWER_DEVICE = (
        "Lower `device` of the Budget (it is now half of what it was), use smaller images or a smaller batch, or end "
        "other processes that use the device"
    )
    RAISE_HOST = "Raise `host` to {need}"
    LOWER_HOST = "Lower `host` of the Budget to store less there, use smaller images, or end other programs that use memory"  # noqa: E501
    RAISE_DISK = "`disk`"
    SMALLER_STRIPS = "use {smaller}"
    SMALLER_IMAGES = "use smaller images or a smaller batch"
    SMALLER_OR_NARROWER = "use smaller images, a smaller batch or store='{store}'"
    CREATE_SCRATCH = "create it, or choose another with Budget(scratch=...)"
    CLEAR_SCRATCH = "Delete files, choose another directory with Budget(scratch=...), or use less of it with Budget(disk=...)"  # noqa: E501
    SMALLER_PATCH = "Use smaller patches, pad the image (tfbig.sources.Padded), or exclude it"
    PAD = "Pad it (tfbig.sources.Padded)"
    RASTERIO = "Open it with reader='rasterio'"
    OPENSLIDE = "Install OpenSlide, and leave out reader='tifffile'"
    PART_OF_ZARR = "Open {part} with reader='zarr'"
    DARK = "Pass dark=True"
    NO_TISSUE = "Convert it first, or find tiles without a mask"
    OPEN_AS = "Open images [H, W, C] with tfbig.open, bags [n, ...] with tfbig.sources.open_bag"
    DTYPE = "Convert the image, or for another dtype pass source_dtype='{found}'"
    NOT_UNIFIED = "Use tfbig.stream, which does not need it"
    PLAIN_KERAS = "Or run it and all that follows in plain Keras with unsupported='device'"


class TfbigError(Exception):
    """Base class of all exceptions that tfbig defines; never raised itself.

    Example:
        >>> try:
        ...     tfbig.open("missing.npy")
        ... except tfbig.TfbigError as error:
        ...     print(type(error).__name__)
        SourceError
    """

    # `Layer.__call__` of Keras rebuilds other errors from their text, without attributes.
    _keras_call_info_injected = True


class AdvisedError(TfbigError):
    """Base class of errors whose advice names arguments of Python, or flags; never raised itself.

    Args:
        message: Error message.
        *advice: What to do, which ends the message.
        **values: Values that the advice names.

    Attributes:
        problem: The message without the advice.
        advice: See above; empty if the message says what to do.
        values: See above.
    """

    def __init__(self, message: object = "", *advice: Advice, **values: Any) -> None:
        self.problem, self.advice, self.values = str(message), advice, values
        super().__init__(self.worded({each: each.value for each in advice}))

    def worded(self, words: Mapping[Advice, str]) -> str:
        """Return the message with advice in other words, which have the same values in braces."""
        if not self.advice:
            return self.problem
        advice = ", or ".join(words[each] for each in self.advice)
        return f"{self.problem} {advice.format(**self.values)}."


class SmallImageError(AdvisedError, ValueError):
    """Raised if an image is smaller than a patch."""


class BudgetError(AdvisedError, ValueError):
    """Raised before anything runs if a plan or a file does not fit the allowed memory or disk space.

    Args:
        message: Error message.
        *advice: What to do, which ends the message.
        need_bytes: Device bytes that the smallest strip needs, if it does not fit the device limit.
        **values: Values that the advice names.

    Attributes:
        problem: The message without the advice.
        advice: See above; empty if the message says what to do.
        values: See above.
        need_bytes: See above; 0 if the device is not what is too small.

    Example:
        >>> image = keras.Input((None, None, 1))
        >>> model = keras.Model(image, keras.layers.Conv2D(2, 3)(image))
        >>> try:
        ...     tfbig.stream(model, tfbig.Budget(device=10)).plan((1, 64, 1000, 1))
        ... except tfbig.BudgetError as error:
        ...     print(error.need_bytes > 10)
        True
    """

    def __init__(
        self, message: object = "", *advice: Advice, need_bytes: int = 0, **values: Any
    ) -> None:
        super().__init__(message, *advice, **values)
        self.need_bytes = need_bytes


class UnsupportedLayerError(AdvisedError, TypeError):
    """Raised if a model has a layer, or a layer setting, that cannot run strip by strip.

    Example:
        >>> image = keras.Input((8, 8, 4))
        >>> model = keras.Model(image, keras.layers.Softmax(axis=1)(image))
        >>> tfbig.stream(model)
        Traceback (most recent call last):
        tfbig.errors.UnsupportedLayerError: layer 'softmax'...
    """


class SourceError(AdvisedError, OSError):
    """Raised if an image cannot be opened, read or written, or has an unsupported format.

    Args:
        message: Error message.
        *advice: What to do, which ends the message.
        **values: Values that the advice names.

    Attributes:
        problem: The message without the advice.
        advice: See above; empty if the message says what to do.
        values: See above.

    Example:
        >>> tfbig.open("missing.npy")
        Traceback (most recent call last):
        tfbig.errors.SourceError: missing.npy: ...
    """


class SourceWarning(UserWarning):
    """Shown once for what a file says and tfbig does not apply, or for files that are passed over.

    Commands print it as one line on the error output. To turn it into an error:
    `warnings.simplefilter("error", tfbig.SourceWarning)`.

    Example:
        >>> import warnings
        >>> with warnings.catch_warnings():
        ...     warnings.simplefilter("ignore", tfbig.SourceWarning)
        ...     # open files
    """


class NonFiniteError(TfbigError, ArithmeticError):
    """Raised if a loss, a statistic or a gradient is NaN or infinite.

    Example:
        >>> issubclass(tfbig.NonFiniteError, ArithmeticError)
        True
    """


class UnifiedMemoryError(AdvisedError, RuntimeError):
    """Raised if host and accelerator cannot share memory, or if sharing is requested too late.

    Example:
        >>> try:
        ...     memory = tfbig.unified_memory()
        ... except tfbig.UnifiedMemoryError:
        ...     memory = None  # use tfbig.stream instead
    """


class Stopped(TfbigError):
    """Raised when long work stops on request, see `tfbig.system.signals`.

    Example:
        >>> try:
        ...     raise tfbig.Stopped("stopped by SIGTERM")  # as fit does after the signal
        ... except tfbig.Stopped as error:
        ...     print(error)
        stopped by SIGTERM
    """


class WorkerError(TfbigError, RuntimeError):
    """Raised on a worker if another worker has failed or disappeared.

    Example:
        >>> issubclass(tfbig.WorkerError, RuntimeError)
        True
    """


def one_line(text: object) -> str:
    r"""Join a text, such as an error of a library, into one line that can be printed.

    Args:
        text: The text, which may hold several lines, and what stands in a damaged file.

    Example:
        >>> one_line("a\n  b.")
        'a b.'
    """
    return "".join(c if c.isprintable() else "?" for c in " ".join(str(text).split()))


def reason_of(error: object, most: int = 300) -> str:
    """Put the text of an error, or any other text, into one line that fits into a sentence, without a full stop.

    Args:
        error: The error. If it has no text, its type is named.
        most: Largest number of characters; the rest is replaced by dots.

    Example:
        >>> reason_of(ValueError())
        'ValueError'
    """
    text = one_line(error).rstrip(".") or type(error).__name__
    return text if len(text) <= most else text[: most - 3] + "..."
