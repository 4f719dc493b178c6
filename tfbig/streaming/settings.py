"""Settings of a streamed model, and the bytes that they leave to its strips."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from tfbig.plan.limits import Limits, workspace_of
from tfbig.system import backend, cudnn, replication, tensorflow_internals
from tfbig.system.budget import DEFAULT_STRIPS, HOST_SHARE, Budget
from tfbig.units import ITEMSIZE

STORES = ("bfloat16", "float16", "float32")
"""Element types in which images may be stored."""


@dataclass(frozen=True)
class Settings:
    """The arguments of `tfbig.stream` besides the model, checked.

    Args:
        budget: As in `tfbig.stream`.
        strip_rows: As in `tfbig.stream`.
        devices: As in `tfbig.stream`.
        source_dtype: As in `tfbig.stream`.
        store: As in `tfbig.stream`.
        upto: As in `tfbig.stream`.
        unsupported: As in `tfbig.stream`.
        plain_if_small: As in `tfbig.stream`.
        replicas: Number of replicas of the model that share the memory and the disk of the machine. Default: those of
            the current strategy.

    Raises:
        ValueError: As in `tfbig.stream`; or `devices` was passed under a strategy with several replicas here.
        TypeError: `budget` is something else.
    """

    budget: Budget = field(default_factory=Budget)
    strip_rows: int | None = None
    devices: str | Sequence[str] | None = None
    source_dtype: str = "uint8"
    store: str | None = None
    upto: str | None = None
    unsupported: str = "error"
    plain_if_small: bool = True
    replicas: int = field(default_factory=lambda: replication.replicas_on_machine())

    def __post_init__(self) -> None:
        """Check the settings."""
        if not isinstance(self.budget, Budget):
            raise TypeError(f"expected budget=tfbig.Budget(host=...), received {self.budget!r}.")
        rows = self.strip_rows
        if rows is not None and (not isinstance(rows, int) or rows < 1):
            raise ValueError(f"strip_rows={rows!r}: expected a positive number of rows, or None.")
        if self.store not in (None, *STORES):
            raise ValueError(f"store={self.store!r}: expected None or one of {STORES}.")
        if self.source_dtype not in ITEMSIZE:
            raise ValueError(
                f"source_dtype={self.source_dtype!r}: expected one of {', '.join(ITEMSIZE)}."
            )
        _ = self.strip_devices  # raises if one does not exist
        if self.devices is not None and self.replicas > 1:
            raise ValueError(
                f"devices={self.devices!r}: expected None under a strategy with {self.replicas} replicas on this "
                "machine; each replica has a device."
            )

    def get_config(self) -> dict[str, Any]:
        """Return what is saved with a model: what a user may pass."""
        config = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "replicas"}
        if not isinstance(self.devices, str | None):
            config["devices"] = [*self.devices]
        return config | {"budget": self.budget.get_config()}

    @cached_property
    def strip_devices(self) -> tuple[str, ...]:
        """Devices that compute strips; none where it is left to TensorFlow."""
        return backend.devices_of(self.devices)

    @property
    def strip_bytes(self) -> tuple[int, bool]:
        """Bytes for strips, and whether they are a hard limit."""
        if self.budget.device_bytes is not None:
            return self.budget.device_bytes, True
        if any(map(backend.is_gpu, self.strip_devices)):
            return int(0.8 * tensorflow_internals.accelerator_bytes()), True
        return min(DEFAULT_STRIPS, self.budget.host_bytes // self.replicas // HOST_SHARE), False

    def limits(self, shared: bool) -> Limits:
        """Return the limits of one replica.

        Args:
            shared: Whether strips are in host memory too.
        """
        strips, firm = self.strip_bytes
        on_gpu = any(map(backend.is_gpu, self.strip_devices))
        workspace = cudnn.limit_workspace(workspace_of(strips)) if on_gpu else 0
        host, disk = (n // self.replicas for n in (self.budget.host_bytes, self.budget.disk_bytes))
        plain = self._plain_bytes(host)
        return Limits(strips, host, disk, firm, shared, plain=plain, workspace=workspace)

    def _plain_bytes(self, host: int) -> int:
        """Return the most bytes of the plain model for which it runs instead of strips; 0 for never."""
        strips, firm = self.strip_bytes
        if not self.plain_if_small or self.strip_rows or self.store:
            return 0
        return strips if firm else host // HOST_SHARE
