"""Available memory of a control group, from files as in the kernel, and a step that would need more."""

import keras
import numpy as np
import pytest

import tfbig
from tfbig.stores import host_memory
from tfbig.stores.page_pool import POOL
from tfbig.system import budget, cgroups


def group(folder, limit, used, cache=0, version=2):
    """Write the files of a control group."""
    folder.mkdir(parents=True, exist_ok=True)
    names = ("memory.max", "memory.current", "inactive_file")
    if version == 1:
        names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 5\n{names[2]} {cache}\nshmem 0\n")


@pytest.fixture
def membership(tmp_path):
    """Writer of the file that lists the groups of this process."""

    def write(*lines):
        (tmp_path / "membership").write_text("\n".join(lines) + "\n")
        return tmp_path / "membership"

    return write


def test_lowest_available_memory_of_all_parents(tmp_path, membership):
    root = tmp_path / "cgroup"
    group(root / "slurm", 8000, 3000)
    group(root / "slurm" / "job_7", 4000, 1500, cache=200)
    group(root / "slurm" / "job_7" / "step", "max", 100)
    assert cgroups.available_bytes(root, membership("0::/slurm/job_7/step")) == 2700
    group(root / "slurm", 8000, 7000)
    assert cgroups.available_bytes(root, membership("0::/slurm/job_7/step")) == 1000


def test_container_group_is_at_the_root(tmp_path, membership):
    root = tmp_path / "cgroup"
    group(root, 5000, 1000)
    assert cgroups.available_bytes(root, membership("0::/../../docker/abc")) == 4000


def test_version_1(tmp_path, membership):
    root = tmp_path / "cgroup"
    group(root / "memory" / "job", 4000, 1000, cache=300, version=1)
    lines = ("9:cpu,cpuacct:/other", "4:memory:/job", "0::/")
    assert cgroups.available_bytes(root, membership(*lines)) == 3300
    group(root / "memory" / "job", 2**63 - 4096, 1000, version=1)
    assert cgroups.available_bytes(root, membership(*lines)) is None


def test_group_above_its_limit(tmp_path, membership):
    root = tmp_path / "cgroup"
    group(root / "job", 4000, 4500)
    assert cgroups.available_bytes(root, membership("0::/job")) == 0


def test_without_groups(tmp_path, membership):
    assert cgroups.available_bytes(tmp_path / "none", membership("0::/job")) is None
    assert cgroups.available_bytes(tmp_path, tmp_path / "none") is None


def test_budget_is_limited_by_the_group(monkeypatch):
    monkeypatch.setattr(cgroups, "available_bytes", lambda: 1234)
    assert budget.available_bytes() == 1234
    monkeypatch.setattr(cgroups, "available_bytes", lambda: 2**62)
    assert budget.available_bytes() < 2**50


def test_step_that_needs_more_is_refused_before_it_runs(monkeypatch):
    """Refused whatever the budget is, because the kernel would kill the process."""
    image = keras.Input((None, None, 1))
    x = keras.layers.BatchNormalization()(keras.layers.Conv2D(8, 3)(image))
    model = keras.Model(image, keras.layers.Conv2D(1, 1)(x))
    big = tfbig.stream(model, tfbig.Budget(device="10MB", host="100GB"))
    big.compile("sgd", "mse")
    data, before = np.ones((1, 256, 256, 1), np.float32), model.get_weights()
    monkeypatch.setattr(host_memory, "available_bytes", lambda: 10_000)
    POOL.trim()
    monkeypatch.setattr(type(POOL), "free_bytes", 0)
    expected = r"a step needs .* MiB of host memory for images, but 9\.8 KiB are available on this machine or"
    with pytest.raises(tfbig.BudgetError, match=expected):
        big.train_on_batch(data, data[:, 2:, 2:])
    for weight, expected in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, expected)
    monkeypatch.undo()
    big.train_on_batch(data, data[:, 2:, 2:])
