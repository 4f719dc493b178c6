"""Folds of cross-validation by case, and by groups of cases."""

import numpy as np
import pytest

from tfbig import SourceError
from tfbig.cli.data import folds


def test_fold_rows():
    rows = [
        {"case_id": f"c{n // 2}", "slide_id": f"s{n}", "label": str(n % 2 and n // 40)}
        for n in range(80)
    ]
    rows = [row | {"label": str(int(row["case_id"][1:]) % 4 == 0)} for row in rows]
    tested = []
    for fold in range(5):
        result = folds.fold_rows(rows, 5, fold, seed=3)
        of_case = {}
        for row in result:
            of_case.setdefault(row["case_id"], set()).add(row["split"])
        assert all(len(names) == 1 for names in of_case.values())
        held = [case for case, names in of_case.items() if names == {"test"}]
        assert len(held) == 8
        assert sum(int(case[1:]) % 4 == 0 for case in held) == 2
        assert sum(names == {"val"} for names in of_case.values()) == 8
        tested += held
    assert sorted(tested) == sorted({row["case_id"] for row in rows})
    assert folds.fold_rows(rows, 5, 0, seed=4) != folds.fold_rows(rows, 5, 0, seed=3)


def rows_of_sites(cases=60, sites=12):
    """Rows of cases with two slides each, from sites of different sizes with different shares of a label."""
    rng = np.random.default_rng(0)
    site_of = rng.choice(sites, cases, p=np.arange(1, sites + 1) / np.arange(1, sites + 1).sum())
    label_of = [str(int(rng.uniform() < 0.2 + 0.05 * site)) for site in site_of]
    return [
        {"case_id": f"c{n // 2}", "slide_id": f"s{n}", "label": label_of[n // 2]}
        | {"site": f"site {site_of[n // 2]}"}
        for n in range(2 * cases)
    ]


def test_all_rows_of_a_group_are_in_one_fold():
    rows, tested = rows_of_sites(), []
    shares = []
    for fold in range(4):
        result = folds.fold_rows(rows, 4, fold, seed=1, group="site")
        splits_of = {}
        for row in result:
            splits_of.setdefault(row["site"], set()).add(row["split"])
        assert all(len(names) == 1 for names in splits_of.values())
        assert {"train", "val", "test"} == set.union(*splits_of.values())
        held = [row for row in result if row["split"] == "test"]
        tested += [row["slide_id"] for row in held]
        shares.append(np.mean([row["label"] == "1" for row in held]))
        validates = {row["slide_id"] for row in result if row["split"] == "val"}
        after = folds.fold_rows(rows, 4, (fold + 1) % 4, seed=1, group="site")
        assert validates == {row["slide_id"] for row in after if row["split"] == "test"}
    assert sorted(tested) == sorted(row["slide_id"] for row in rows)
    assert np.ptp(shares) < 0.3
    again = folds.fold_rows(rows, 4, 0, seed=2, group="site")
    assert again != folds.fold_rows(rows, 4, 0, seed=1, group="site")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda rows: [row | {"site": ""} for row in rows], "has no site; --group site expects"),
        (
            lambda rows: [row | {"site": f"{row['slide_id']}"} for row in rows],
            "case c0 has site 's1', but 's0' in a line before",
        ),
        (
            lambda rows: [row | {"site": row["label"]} for row in rows],
            "there are 2 groups and at most .* too few",
        ),
        (
            lambda rows: [row | {"label": str(int(n == 0))} for n, row in enumerate(rows)],
            "all have label 0, so that it cannot be tested",
        ),
    ],
)
def test_groups_that_cannot_be_used(change, message):
    with pytest.raises(SourceError, match=message):
        folds.fold_rows(change(rows_of_sites()), 4, 0, group="site")


def test_a_fold_of_one_class_is_refused():
    rows = [{"case_id": str(n), "label": "01"[n < 2]} for n in range(20)]
    with pytest.raises(SourceError, match=r"--folds 5: the cases of fold \d all have label 0"):
        folds.fold_rows(rows, 5, 0)
    same = [row | {"label": "0"} for row in rows]
    assert {row["split"] for row in folds.fold_rows(same, 5, 0)} == {"train", "val", "test"}
