"""Table of TCGA-PRAD: grades, and one slide of each patient."""

import dataset_folders
import pytest
from dataset_folders import write_lines

from tfbig import SourceError
from tfbig.cli.data.collections import tcga_prad


def labels(table):
    return {row["slide_id"]: row["label"] for row in table.rows}


@pytest.mark.parametrize("new_names", [False, True])
def test_tcga_prad(new_names, tmp_path):
    dataset_folders.tcga_prad(tmp_path, new_names)
    found = tcga_prad.read(tmp_path, 0)
    (table,) = found.tables
    of_case = {row["case_id"][-1]: row["label"] for row in table.rows}
    assert of_case == {str(n): f"ISUP {n + 1}" for n in range(5)}
    assert {row["split"] for row in table.rows} == {"test"}
    assert not any("TS1" in row["slide_id"] for row in table.rows)
    (missing,) = found.missing
    assert missing == "clinical.tsv: grade of TCGA-2A-0005-01Z-00-DX2.00000005-ABCD.svs"
    drawn = {tcga_prad.read(tmp_path, seed).tables[0].rows[0]["slide_id"] for seed in range(8)}
    assert len(drawn) == 2  # one of the two slides of a patient
    slide = "TCGA-2A-0001-01Z-00-DX2.00000001-ABCD"
    write_lines(tmp_path / "tcga_prad_test.csv", "slide_id,label", f"{slide},5")
    assert labels(tcga_prad.read(tmp_path, 0).tables[0]) == {slide: "ISUP 5"}


def test_columns_of_clinical_data(tmp_path):
    write_lines(tmp_path / "clinical.tsv", "case_id\tprimary_gleason_grade", "a\tPattern 3")
    expected = "has no column 'case_submitter_id' or 'cases.submitter_id' and no column 'second"
    with pytest.raises(SourceError, match=expected):
        tcga_prad.read(tmp_path, 0)
