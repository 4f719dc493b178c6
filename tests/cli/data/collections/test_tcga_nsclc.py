"""Table of TCGA-NSCLC: projects, and splits by patient."""

import dataset_folders
import pytest

from tfbig.cli.data.collections import tcga_nsclc


def touch(folder, *names):
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()


def of_cases(table):
    cases = {}
    for row in table.rows:
        cases.setdefault(row["case_id"], set()).add(row["split"])
    return cases


@pytest.mark.parametrize("sheet", [False, True])
def test_tcga_nsclc(sheet, tmp_path):
    dataset_folders.tcga_nsclc(tmp_path, cases=25, sheet=sheet)
    touch(tmp_path, "other/TCGA-ZZ-0000-01Z-00-DX1.X.svs")
    found = tcga_nsclc.read(tmp_path, 0)
    (table,) = found.tables
    assert len(table.rows) == 100
    assert len(found.missing) == 1 and found.missing[0].startswith("TCGA-ZZ-0000")
    cases = of_cases(table)
    assert all(len(parts) == 1 for parts in cases.values())
    parts = [min(parts) for parts in cases.values()]
    assert [parts.count(split) for split in ("train", "val", "test")] == [36, 4, 10]
    assert found.notes[0].startswith("50 diagnostic slides (DX) and 50 frozen sections")
    assert "2 are of normal tissue" in found.notes[0]
