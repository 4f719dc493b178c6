"""The exceptions that tfbig raises on its own account, all with one base."""


class TfbigError(Exception):
    """Base of every exception that tfbig defines; never raised itself."""


class BudgetError(TfbigError, ValueError):
    """Raised before anything runs when a plan or a file does not fit the memory or disk allowed.

    Attributes:
        need_bytes: of the device that the smallest strip takes, where that is what does not fit.
    """

    def __init__(self, message: str, need_bytes: int = 0) -> None:
        super().__init__(message)
        self.need_bytes = need_bytes


class UnsupportedLayerError(TfbigError, TypeError):
    """Raised when a model holds a layer, or a setting of one, that cannot run strip by strip."""


class SourceError(TfbigError, OSError):
    """Raised when an image cannot be opened, read or written, or is not of a kind that can be."""


class NonFiniteError(TfbigError, ArithmeticError):
    """Raised when a loss, a statistic or a gradient is NaN or infinite."""


class UnifiedMemoryError(TfbigError, RuntimeError):
    """Raised when memory cannot be shared between host and accelerator, or it is too late to ask for it."""


class Stopped(TfbigError):
    """Raised where long work ends because it was asked to, see `tfbig.system.signals`."""


class WorkerError(TfbigError, RuntimeError):
    """Raised on a worker when another one has failed or is gone."""
