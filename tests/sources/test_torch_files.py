"""Files of torch: what is found in them, and that nothing in them is run."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mutations
import numpy as np
import pytest
from resource_limits import cheap
from torch_saved import Call, Named, features, tensor, write

from tfbig import SourceError
from tfbig.sources import open_bag, torch_files

ARRAY = np.arange(12, dtype="float32").reshape(4, 3)


@pytest.mark.parametrize(
    ("array", "kind"), [(ARRAY, "FloatStorage"), (ARRAY.astype("float16"), "HalfStorage")]
)
def test_features_of_clam(array: np.ndarray, kind: str, tmp_path: Path) -> None:
    bag = open_bag(features(tmp_path / "a.pt", array, kind))
    assert (bag.shape, bag.dtype, bag.coords) == ((4, 3), array.dtype, None)
    np.testing.assert_array_equal(bag.read(1, 3), array[1:3])
    np.testing.assert_array_equal(bag.take([3, 0]), array[[3, 0]])


def test_layouts_of_a_tensor(tmp_path: Path) -> None:
    """A leading axis, a place inside its storage, and rows that are not in C order."""
    numbers = np.arange(20, dtype="float32")
    cases: list[tuple[Any, np.ndarray]] = [
        (tensor(numbers, "0", (1, 4, 3), (12, 3, 1)), numbers[:12].reshape(4, 3)),
        (tensor(numbers, "0", (4, 3), (3, 1), 5), numbers[5:17].reshape(4, 3)),
        (tensor(numbers, "0", (4, 3), (1, 4)), numbers[:12].reshape(3, 4).T),
        ({"feats": tensor(numbers, "0", (4, 5), (5, 1))}, numbers.reshape(4, 5)),
    ]
    for content, expected in cases:
        bag = open_bag(write(tmp_path / "a.pt", content, {"0": numbers}))
        assert bag.shape == expected.shape
        np.testing.assert_array_equal(bag.read(1, 4), expected[1:4])


@pytest.mark.torch
def test_a_file_that_torch_wrote(tmp_path: Path) -> None:
    program = "import torch; torch.save(torch.arange(12.).reshape(4, 3), 'a.pt')"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=tmp_path)
    bag = open_bag(tmp_path / "a.pt")
    np.testing.assert_array_equal(bag.read(0, 4), ARRAY)


MARK = "ran"


class Opener:
    """Object whose unpickling creates a file."""

    def __reduce__(self) -> Any:
        return open, (MARK, "w")


REFUSED: dict[str, tuple[Any, str]] = {
    "a function of the system": (Call("os", "system", f"touch {MARK}"), "holds os.system;"),
    "a builtin": (Call("builtins", "exec", f"open({MARK!r}, 'w')"), "holds builtins.exec;"),
    "a function in a tensor": (
        Call("torch._utils", "_rebuild_tensor_v2", Call("os", "system", f"touch {MARK}")),
        "holds os.system;",
    ),
    "a loader of torch": (Call("torch", "load", "other.pt"), "holds torch.load;"),
    "a name without a call": (Named("subprocess", "run"), "holds subprocess.run;"),
    "a list": ([1, 2], "holds a list; expected one tensor"),
    "nothing": ({}, "holds a NoneType; expected one tensor"),
    "a tensor of a list": (
        Call("torch._utils", "_rebuild_tensor_v2", [0.0], 0, (1,), (1,)),
        "a tensor of a list",
    ),
    "a copied dictionary": (Call("collections", "OrderedDict", {}), "damaged"),
    "another default": (
        Call("torch._utils", "_rebuild_tensor_v2", state=(None, {"__defaults__": (0,)})),
        "damaged",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_nothing_is_run(what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    content, message = REFUSED[what]
    path = write(tmp_path / "a.pt", content, {"0": ARRAY})
    with pytest.raises(SourceError, match=rf"a\.pt: .*{message}") as caught:
        open_bag(path)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / MARK).exists()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_is_run_by_any_protocol(
    protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pickle that is read by Python does run its code, so the test would see it."""
    monkeypatch.chdir(tmp_path)
    pickled = pickle.dumps(Opener(), protocol)
    path = write(tmp_path / "a.pt", None, {}, pickled=pickled)
    with pytest.raises(SourceError, match=r"a\.pt: holds (_io|io|builtins|__builtin__)\.open;"):
        open_bag(path)
    assert not (tmp_path / MARK).exists()
    pickle.loads(pickled).close()
    assert (tmp_path / MARK).exists()


def test_objects_that_a_pickle_gets_cannot_be_changed() -> None:
    for stand_in in torch_files._BUILT.values():
        for name in ("__defaults__", "__call__", "other"):
            with pytest.raises(AttributeError):
                setattr(stand_in, name, 0)
    with pytest.raises(AttributeError):
        torch_files.Storage("FloatStorage", 0, 0, 0).offset = 1  # type: ignore[misc]


def test_a_pickle_that_is_too_large_for_a_tensor(tmp_path: Path) -> None:
    path = write(tmp_path / "a.pt", ["x" * 10**5], {})
    with pytest.raises(SourceError, match=r"a\.pt: has a pickle of \d+ bytes, which is more than"):
        open_bag(path)


def test_pickles_that_number_what_they_do_not_have(tmp_path: Path) -> None:
    """The reader of Python sets aside memory up to the largest number of an object."""
    for numbered in (b"r\xff\xff\xff\x0f", b"p999999999\n"):
        path = write(tmp_path / "a.pt", None, {}, pickled=b"\x80\x02N" + numbered + b".")
        with cheap(), pytest.raises(SourceError, match=r"a\.pt: has a pickle of more objects"):
            open_bag(path)


def test_tuples_in_one_another(tmp_path: Path) -> None:
    """Python hashes the keys of dictionaries by recursion, whose depth it does not limit."""
    pickled = b"\x80\x02}N" + b"\x85" * 10**6 + b"Ns."
    path = write(tmp_path / "a.pth", None, {}, pickled=pickled)
    with pytest.raises(torch_files.RefusedError, match="has a pickle of more objects"):
        torch_files.read(path)


def test_tensors_of_too_many_axes(tmp_path: Path) -> None:
    path = write(tmp_path / "a.pt", tensor(ARRAY, "0", (1,) * 33, (1,) * 33), {"0": ARRAY})
    with pytest.raises(SourceError, match=r"a\.pt: .*a tensor of 33 axes"):
        open_bag(path)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def without_storage(path: Path) -> None:
    write(path, tensor(ARRAY, "0"), {})


def short_storage(path: Path) -> None:
    write(path, tensor(ARRAY, "0"), {"0": ARRAY[:2]})


def noise(path: Path) -> None:
    path.write_bytes(b"noise" * 100)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (cut, "is not a zip archive, which torch writes since version 1.6"),
        (noise, "is not a zip archive, which torch writes since version 1.6"),
        (without_storage, "is damaged .*There is no item named"),
        (short_storage, "is damaged .*storage 0 has 6 numbers instead of 12"),
    ],
)
def test_damaged_files(damage: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    path = features(tmp_path / "a.pt", ARRAY)
    damage(path)
    with pytest.raises(SourceError, match=rf"a\.pt: .*{message}.*expected one tensor"):
        open_bag(path)


def test_changed_bytes(tmp_path: Path) -> None:
    """Whatever byte is overwritten, reading gives an array or SourceError."""
    good, bad = features(tmp_path / "good.pt", ARRAY), tmp_path / "bad.pt"
    content, refused = good.read_bytes(), 0
    for place in range(len(content)):
        bad.write_bytes(content[:place] + bytes([content[place] ^ 0x11]) + content[place + 1 :])
        try:
            bag = open_bag(bad)
            assert bag.read(0, bag.shape[0]).shape == bag.shape
        except SourceError as error:
            refused += 1
            assert "bad.pt" in str(error)
    assert refused > 100


def test_files_damaged_by_chance(tmp_path: Path) -> None:
    """Nothing but arrays and errors in one line comes of 1000 files with some bytes changed, moved or cut off."""
    good, bad = features(tmp_path / "good.pt", ARRAY), tmp_path / "bad.pt"
    rng, refused = np.random.default_rng(0), 0
    for _ in range(1000):
        mutations.damaged(good, bad, rng)
        try:
            bag = open_bag(bad)
            assert bag.read(0, bag.shape[0]).shape == bag.shape
        except SourceError as error:
            refused += 1
            assert "bad.pt" in str(error)
            assert "\n" not in str(error)
    assert 500 < refused < 1000


def test_file_that_became_shorter(tmp_path: Path) -> None:
    path = features(tmp_path / "a.pt", ARRAY)
    bag = open_bag(path)
    path.write_bytes(path.read_bytes()[:60])
    with pytest.raises(SourceError, match=r"a\.pt: ends .* bytes before"):
        bag.read(0, 4)
