"""Files of weights: what is read, and what is refused."""

import os
import zipfile
from collections import OrderedDict

import h5py
import numpy as np
import pytest
from resource_limits import cheap
from safetensors.numpy import save_file
from torch_saved import Call, tensor, write

from tfbig.models import weight_files
from tfbig.sources import torch_files

STATE = {"a.weight": np.arange(6, dtype="float32").reshape(2, 3), "a.bias": np.ones(2, "float32")}


def test_files_of_arrays(tmp_path):
    save_file(STATE, tmp_path / "w.safetensors")
    np.savez(tmp_path / "w.npz", **STATE)
    with h5py.File(tmp_path / "w.h5", "w") as file:
        for key, array in STATE.items():
            file[key] = array
        file["words"] = "not an array of numbers"
    for name in ("w.safetensors", "w.npz", "w.h5"):
        arrays = weight_files.read(tmp_path / name)
        assert arrays.keys() == STATE.keys()
        for key, array in STATE.items():
            np.testing.assert_array_equal(arrays[key], array)


@pytest.mark.parametrize("wrapper", [None, "state_dict", "model"])
def test_files_of_torch(wrapper, tmp_path):
    a, b = STATE.values()
    state = OrderedDict(zip(STATE, (tensor(a, "0"), tensor(b, "1")), strict=True))
    content = {wrapper: state, "epoch": 3} if wrapper else state
    arrays = weight_files.read(write(tmp_path / "w.pth", content, {"0": a, "1": b}))
    assert arrays.keys() == STATE.keys()
    for key, array in STATE.items():
        np.testing.assert_array_equal(arrays[key], array)


def test_views_of_a_storage(tmp_path):
    """A transposed part of a storage of bfloat16, which torch stores by offset and strides."""
    numbers = np.arange(12, dtype=torch_files.STORAGES["BFloat16Storage"])
    view = tensor(numbers, "0", (2, 3), (1, 4), 1, "BFloat16Storage")
    arrays = weight_files.read(write(tmp_path / "w.bin", {"w": view}, {"0": numbers}))
    np.testing.assert_array_equal(arrays["w"], numbers.reshape(3, 4).T[1:3])


REFUSED = {
    "a function": (Call("os", "system", "true"), "holds os.system; files of torch can run code"),
    "a builtin": (
        Call("builtins", "eval", "1"),
        "holds builtins.eval; files of torch can run code",
    ),
    "a network": (
        {"model": Call("torchvision.models.resnet", "ResNet")},
        "holds torchvision.models.resnet.ResNet; files of torch can run code",
    ),
    "a list": ([1, 2], "holds a list, not a dictionary of tensors"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_anything_but_tensors(what, tmp_path):
    content, message = REFUSED[what]
    path = write(tmp_path / "w.pth", content, {})
    with pytest.raises(ValueError, match=rf"w.pth: {message}.*Where torch is installed, write"):
        weight_files.read(path)


NUMBERS = np.zeros(6, "float32")


@pytest.mark.parametrize(
    "view",
    [
        tensor(NUMBERS, "0", (7,), (1,)),
        tensor(NUMBERS, "0", (2, 3), (4, 1)),
        tensor(NUMBERS, "0", (6,), (1,), 1),
        tensor(NUMBERS, "0", (6,), (-1,), 5),
        tensor(NUMBERS, "0", (6,), (1,), -1),
        tensor(NUMBERS, "0", (-6,), (1,)),
        tensor(NUMBERS, "0", (2**40, 6), (0, 1)),
    ],
)
def test_tensors_that_reach_out_of_their_storage(view, tmp_path):
    path = write(tmp_path / "w.pth", {"w": view}, {"0": NUMBERS})
    with pytest.raises(ValueError, match="reaches out of its 6 numbers"):
        weight_files.read(path)


def test_changed_numbers_of_torch(tmp_path):
    path = write(tmp_path / "w.pth", {"w": tensor(NUMBERS, "0")}, {"0": NUMBERS})
    content = path.read_bytes()
    assert content.count(NUMBERS.tobytes()) == 1
    path.write_bytes(content.replace(NUMBERS.tobytes(), b"\1" + NUMBERS.tobytes()[1:]))
    with pytest.raises(ValueError, match=r"w\.pth: .*the checksum of its numbers is wrong"):
        weight_files.read(path)


def test_damaged_archives_of_torch(tmp_path):
    content = {"w": tensor(NUMBERS, "0")}
    short = write(tmp_path / "short.pth", content, {"0": NUMBERS[:5]})
    lacking = write(tmp_path / "lacking.pth", content, {})
    packed = write(tmp_path / "packed.pth", content, {"0": NUMBERS}, zipfile.ZIP_DEFLATED)
    for path, message in (
        (short, "has 5 numbers instead of 6"),
        (lacking, "There is no item named"),
        (packed, "not an archive that torch.save wrote"),
    ):
        with pytest.raises(ValueError, match=message):
            weight_files.read(path)


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("none.npz", FileNotFoundError, "none.npz: the file does not exist"),
        (
            "w.onnx",
            ValueError,
            r"w.onnx: expected a file of weights: .safetensors, .npz, .*save_file\(",
        ),
        (
            "noise.pth",
            ValueError,
            r"noise.pth: is not a zip archive, .* Where torch is installed, write",
        ),
        ("noise.safetensors", ValueError, "is not a .safetensors file of arrays, or is damaged"),
        ("noise.npz", ValueError, "noise.npz: is not a .npz file of arrays, or is damaged"),
        ("noise.h5", ValueError, "noise.h5: is not a .h5 file of arrays, or is damaged"),
        ("cut.npz", ValueError, "cut.npz: is not a .npz file of arrays, or is damaged"),
    ],
)
def test_unreadable_files(name, kind, message, tmp_path):
    np.savez(tmp_path / "whole.npz", a=np.zeros(100))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "whole.npz").read_bytes()[:200])
    for damaged in ("noise.npz", "noise.safetensors", "noise.pth", "noise.h5", "w.onnx"):
        (tmp_path / damaged).write_bytes(b"\x01noise" * 10)
    with pytest.raises(kind, match=message):
        weight_files.read(tmp_path / name)


def test_tensors_of_one_storage_share_its_memory(tmp_path):
    numbers = np.zeros(10**6, "float32")
    content = {str(n): tensor(numbers, "0") for n in range(400)}
    path = write(tmp_path / "w.pth", content, {"0": numbers})
    with cheap(megabytes=30):
        arrays = weight_files.read(path)
    assert len(arrays) == 400


def test_storages_that_overlap(tmp_path):
    path = write(tmp_path / "w.pth", {}, {})
    view = torch_files.Tensor(torch_files.Storage("FloatStorage", 8, 10**9, 0), 0, (1,), (1,))
    with pytest.raises(ValueError, match=r"its storages of .* overlap"):
        torch_files.arrays(path, {"w": view})


def packed(path, headers):
    """Write an archive of NumPy with declared shapes, and four zeros for each."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, shape in headers.items():
            with archive.open(f"{name}.npy", "w") as part:
                header = {"descr": "<f4", "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(part, header)
                part.write(bytes(4))
    return path


def test_declared_sizes_of_numpy(tmp_path):
    assert weight_files.read(packed(tmp_path / "w.npz", {"w": (1,)}))["w"].tolist() == [0]
    path = packed(tmp_path / "w.npz", {"w": (10**9,)})
    with cheap(), pytest.raises(ValueError, match=r"w\.npy has 4 bytes instead of 4000000000"):
        weight_files.read(path)
    content = path.read_bytes()
    place = content.index(b"PK\1\2") + 24  # the size of the part in the list of the archive
    path.write_bytes(content[:place] + b"\xff\xff\xff\xf0" + content[place + 4 :])
    with cheap(), pytest.raises(ValueError, match=r"w\.npz: .*its arrays would take"):
        weight_files.read(path)


def test_declared_sizes_and_other_files_of_hdf5(tmp_path):
    path, secret = tmp_path / "w.h5", tmp_path / "secret"
    secret.write_bytes(bytes(8))
    for options, message in (
        ({"shape": 10**9}, r"declares .*, but only 0 B are stored"),
        ({"shape": 2, "external": [(str(secret), 0, 8)]}, "is stored in other files"),
    ):
        with h5py.File(path, "w") as file:
            file.create_dataset("w", dtype="f4", **options)
        with cheap(), pytest.raises(ValueError, match=message):
            weight_files.read(path)
    os.mkfifo(tmp_path / "pipe.h5")
    with pytest.raises(FileNotFoundError):
        weight_files.read(tmp_path / "pipe.h5")


def test_damaged_compression_of_numpy(tmp_path):
    """`zlib.error` is no ValueError."""
    np.savez_compressed(tmp_path / "w.npz", w=np.arange(100))
    content = bytearray((tmp_path / "w.npz").read_bytes())
    content[60:70] = b"\xff" * 10
    (tmp_path / "w.npz").write_bytes(content)
    with pytest.raises(ValueError, match=r"w\.npz: is not a \.npz file of arrays, or is damaged"):
        weight_files.read(tmp_path / "w.npz")
