"""Folds of cross-validation: by case, and by groups of cases such as the sites that they are from."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfbig.cli.data import splits
from tfbig.cli.paths import FlagError
from tfbig.errors import SourceError
from tfbig.sources.table import Cells, Row, cases_of


def fold_rows(
    rows: Sequence[dict[str, Any]],
    folds: int,
    fold: int,
    seed: int = 0,
    group: str | None = None,
) -> list[Any]:
    """Write a `split` of k-fold cross-validation into rows: fold `fold` tests, the next one validates.

    Every case is tested in one fold, and the same seed makes the same folds. Strata are spread evenly, up to one case;
    with groups as evenly as they allow, by scikit-learn's `StratifiedGroupKFold`, which keeps all cases of a group in
    one fold.

    Raises:
        SourceError: There are fewer than 3 folds, no such fold, fewer cases or groups than folds, a case of two groups,
            or a fold for testing whose cases are all of one stratum.
    """
    if folds < 3 or not 0 <= fold < folds:
        raise FlagError(
            f"--folds {folds}, --fold {fold}: expected 3 folds or more (one for testing, one for validation), and "
            "a fold from 0 to the number of folds - 1."
        )
    fold_of_case = (
        _by_case(rows, folds, seed) if group is None else _by_group(rows, folds, seed, group)
    )
    _check_strata(rows, fold_of_case, folds)
    names = {fold: "test", (fold + 1) % folds: "val"}
    return [
        row | {"split": names.get(fold_of_case[case], "train")}
        for row, case in zip(rows, cases_of(rows), strict=True)
    ]


def _by_case(rows: Sequence[Cells], folds: int, seed: int) -> dict[str, int]:
    """Deal out the cases of each stratum to the folds in turn.

    Raises:
        SourceError: There are fewer cases than folds.
    """
    rng = np.random.default_rng(seed)
    fold_of_case: dict[str, int] = {}
    for cases in splits.cases_by_stratum(rows):
        for which in rng.permutation(len(cases)):
            fold_of_case[cases[which]] = len(fold_of_case) % folds
    if len(fold_of_case) < folds:
        raise SourceError(
            f"{len(fold_of_case)} cases are too few for {folds} folds. Use fewer --folds."
        )
    return fold_of_case


def _by_group(rows: Sequence[Cells], folds: int, seed: int, group: str) -> dict[str, int]:
    """Choose the fold of each case, the same for all cases of a group.

    Raises:
        SourceError: There are fewer groups than folds, a row has none, or a case has two.
    """
    from sklearn.model_selection import StratifiedGroupKFold

    group_of_case = _groups(rows, group)
    number, strata = len(set(group_of_case.values())), splits.strata_of(rows)
    most = max(Counter(strata.values()).values(), default=0)
    if number < folds or most < folds:
        raise FlagError(
            f"--group {group}: there are {number} groups and at most {most} cases with one label, too few for {folds} "
            "folds. Use fewer --folds."
        )
    codes = {stratum: n for n, stratum in enumerate(sorted(set(strata.values())))}
    cases = list(group_of_case)
    kinds, groups = [codes[strata[case]] for case in cases], list(group_of_case.values())
    parts = StratifiedGroupKFold(folds, shuffle=True, random_state=seed % 2**32)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of strata with fewer cases than folds
        tested = [test for _, test in parts.split(cases, kinds, groups)]
    return {cases[place]: n for n, places in enumerate(tested) for place in places}


def _groups(rows: Sequence[Cells], group: str) -> dict[str, str]:
    """Read the group of each case.

    Raises:
        SourceError: A row has none, or a case has two.
    """
    found: dict[str, str] = {}
    for row, case in zip(rows, cases_of(rows), strict=True):
        place = row.place if isinstance(row, Row) else "the table"
        value = (row.get(group) or "").strip()
        if not value:
            raise SourceError(
                f"{place}: has no {group}; --group {group} expects a column with the group of each row. Add it, or "
                "use another --group."
            )
        if found.setdefault(case, value) != value:
            raise SourceError(
                f"{place}: case {case} has {group} '{value}', but '{found[case]}' in a line before; expected one group "
                "for all rows of a case."
            )
    return found


def _check_strata(rows: Sequence[Cells], fold_of_case: Mapping[str, int], folds: int) -> None:
    """Check that the cases of each fold are of more than one stratum, if those of the table are.

    Raises:
        SourceError: All cases of a fold are of one: what most metrics measure is not defined there.
    """
    strata = splits.strata_of(rows)
    if len(set(strata.values())) < 2:
        return
    inside: list[set[Any]] = [set() for _ in range(folds)]
    for case, fold in fold_of_case.items():
        inside[fold].add(strata[case])
    for fold, kinds in enumerate(inside):
        if len(kinds) == 1:
            raise FlagError(
                f"--folds {folds}: the cases of fold {fold} all have label {kinds.pop()}, so that it cannot be tested; "
                "expected two or more. Use fewer --folds, another --seed or another --group."
            )
