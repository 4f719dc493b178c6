"""`tfbig compare`: a table, a picture and a report of several runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from cli_runs import rows_of

from tfbig.cli.main import main
from tfbig.results import run_folder

LABELS = np.arange(40) % 2


def write_run(folder: Path, wrong: int, finished: bool = True) -> Path:
    """Write the folder of a run that was wrong in the first of its test bags."""
    folder.mkdir(parents=True)
    right = np.where(np.arange(40) >= wrong, LABELS, 1 - LABELS)
    rows = [
        {"bag": f"s{n}", "label": ["no", "yes"][LABELS[n]], "predicted": ["no", "yes"][p]}
        | {"probability_no": 1 - 0.9 * p, "probability_yes": 0.9 * p}
        for n, p in enumerate(right.tolist())
    ]
    run_folder.write_csv(folder / run_folder.PREDICTIONS, rows)
    run_folder.write_yaml(folder / run_folder.CONFIG, {"task": "mil"})
    if finished:
        run_folder.write_json(folder / run_folder.METRICS, {"test_accuracy": 1 - wrong / 40})
    return folder


def test_runs_and_a_series(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A series of two seeds, of which a third has not finished, is better than a single run by two cases."""
    single, series, out = write_run(tmp_path / "single", 4), tmp_path / "series", tmp_path / "out"
    for seed, wrong in enumerate((1, 3, 40)):
        write_run(series / f"seed-{seed}", wrong, finished=seed < 2)
    run_folder.write_yaml(series / run_folder.CONFIG, {"task": "mil", "seed": 0, "seeds": 3})
    assert main(["compare", str(single), str(series), "--out", str(out)]) == 0
    rows = {(row["metric"], row["run"]): row for row in rows_of(out / "comparison.csv")}
    assert {metric for metric, _ in rows} == {"accuracy", "AUC", "quadratic weighted kappa"}
    first, second = rows["accuracy", "single"], rows["accuracy", "series"]
    assert (first["runs"], second["runs"], second["cases"]) == ("1", "2", "40")
    assert float(first["mean"]) == pytest.approx(0.9)
    assert float(second["mean"]) == pytest.approx(0.95)
    assert float(second["difference"]) == pytest.approx(0.05)
    assert float(second["difference from"]) < 0.05 < float(second["difference to"])
    assert first["difference"] == ""
    shown = capsys.readouterr()
    assert "series: 0.9500 (" in shown.out
    assert not shown.err
    page = (out / "report.html").read_text(encoding="utf-8")
    assert "Comparison of runs" in page
    assert (out / "comparison.png").read_bytes().startswith(b"\x89PNG")


def test_cases_that_only_one_run_tested(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """They are not compared in pairs, as where a spreadsheet wrote the cases of one run as floats."""
    first, second = write_run(tmp_path / "one", 4), write_run(tmp_path / "two", 3)
    table = second / run_folder.PREDICTIONS
    table.write_text(table.read_text().replace("s39,", "S-39,"))
    assert main(["compare", str(first), str(second), "--out", str(tmp_path / "out")]) == 0
    line = "two: 1 of 40 names matches no case that one tested, such as S-39 (is it s39?)\n"
    assert capsys.readouterr().err == line


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        (["one"], "there is one run, one; expected two or more"),
        (["one", "none"], "none: no such folder"),
        (["one", "."], "is not a run folder of train or evaluate"),
        (["one", "begun"], "begun: no run has finished. Continue it with --resume"),
        (["one", "plain"], "plain: predictions.csv has no predictions beside labels"),
        (["one", "one/../one"], "a run is named twice"),
        (["one", "masks"], "the runs have no metric in common"),
    ],
)
def test_errors(
    runs: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "one", 4)
    write_run(tmp_path / "begun", 4, finished=False)
    for name, row in (("plain", {"slide": "a", "area": 3}), ("masks", {"slide": "a", "dice": 0.5})):
        write_run(tmp_path / name, 4)
        run_folder.write_csv(tmp_path / name / run_folder.PREDICTIONS, [row])
    assert main(["compare", *runs, "--out", "out"]) in (1, 2)
    error = capsys.readouterr().err
    assert message in error and error.count("tfbig compare: ") == 1
    assert not (tmp_path / "out").exists()
