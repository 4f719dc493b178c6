"""`--target` from the command line: each learns a planted signal, and is evaluated, predicted and reported."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import cli_runs
import keras
import numpy as np
import pytest
import target_bags
import yaml
from cli_runs import history, metrics, predictions, rows_of, write_table
from scipy import stats

import train
from tfbig import SourceError, survival
from tfbig.cli.data.run_data import Data
from tfbig.cli.main import main
from tfbig.cli.settings import training
from tfbig.cli.tasks import regression_target, survival_target, targets
from tfbig.cli.tasks.regression_target import RegressionTarget
from tfbig.cli.tasks.survival_target import SurvivalTarget
from tfbig.mil import BagSet
from tfbig.results import judgement

COX = ("--survival-loss", "cox", "--accumulate", "16")
FLAGS = {
    "survival": ("survival", 2, ("--monitor", "concordance", "--alpha", "0.1", "--epochs", "3")),
    "cox": ("survival", 1, (*COX[:-1], "8", "--epochs", "4", "--lr", "0.1")),
    "regression": ("regression", 1, ("--monitor", "mae")),
    "multilabel": ("multilabel", 1, ("--monitor", "auc")),
}
"""Target, slides of a case and flags of each run."""


class Made(NamedTuple):
    """The data and the folder of a run."""

    data: Path
    folder: Path


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Function from a name in `FLAGS` to its run, trained on first use."""
    runs: dict[str, Made] = {}

    def run(name: str) -> Made:
        if name not in runs:
            base = tmp_path_factory.mktemp(name)
            target, slides, flags = FLAGS[name]
            runs[name] = Made(target_bags.write(base / "data", target, slides), base / "run")
            with cli_runs.like_a_test():
                assert target_bags.run(*runs[name], target, *flags) == 0
        return runs[name]

    return run


def cases_of(rows):
    """Mean risks, times and events of the cases of predictions."""
    cases = sorted({row["case"] for row in rows})
    of = {case: [row for row in rows if row["case"] == case] for case in cases}
    risks = [np.mean([float(row["risk"]) for row in of[case]]) for case in cases]
    return risks, [float(of[c][0]["time"]) for c in cases], [int(of[c][0]["event"]) for c in cases]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["survival", pytest.param("cox", marks=pytest.mark.slow)])
def test_survival_is_learned(name, made):
    """Figures of merit are those of the mean risks of the test cases; high risk dies earlier."""
    folder = made(name).folder
    found, rows = metrics(folder), predictions(folder)
    assert found["test_concordance"] == pytest.approx(
        survival.concordance_index(*cases_of(rows)), abs=1e-9
    )
    assert found["test_concordance"] > 0.75
    assert found["test_auc"] > 0.75
    assert history(folder)[-1]["concordance"] > 0.75
    assert history(folder)[-1]["loss"] < history(folder)[0]["loss"]
    risks, times, events = map(np.array, cases_of(rows))
    high = risks > found["median_risk"]
    assert found["test_log_rank_p"] == survival.log_rank_test(times, events, high).p_value
    assert [int(row["cases"]) for row in rows_of(folder / "risk_groups.csv")] == [
        *((~high).sum(), high.sum())
    ]
    page = (folder / "report.html").read_text()
    assert all(title in page for title in ("Survival", "Groups of risk", "A higher risk is worse"))


@pytest.mark.slow
def test_chances_of_survival(made):
    """They fall from cut to cut; the cuts are the quantiles of the events of the training cases, and saved."""
    folder = made("survival").folder
    cuts = yaml.safe_load((folder / "config.yaml").read_text())["time_cuts"]
    table = rows_of(made("survival").data / "bags.csv")
    times = [float(r["time"]) for r in table[::2] if r["split"] == "train" and r["event"] == "1"]
    np.testing.assert_allclose(cuts, np.quantile(times, (0.25, 0.5, 0.75)))
    row = predictions(folder)[0]
    chances = [float(row[f"survival_{cut:.6g}"]) for cut in cuts]
    assert 1 >= chances[0] >= chances[1] >= chances[2] >= 0
    assert -4 <= float(row["risk"]) <= -sum(chances)


@pytest.mark.slow
def test_regression_is_learned(made):
    folder = made("regression").folder
    rows, found = predictions(folder), metrics(folder)
    values, predicted = (np.array([float(r[c]) for r in rows]) for c in ("value", "predicted"))
    assert found["test_mae"] == pytest.approx(np.abs(values - predicted).mean())
    assert found["test_mae"] < 0.7 * np.abs(values - values.mean()).mean()
    assert found["test_spearman"] == pytest.approx(stats.spearmanr(values, predicted).statistic)
    assert found["test_spearman"] > 0.7
    best = min(history(folder), key=lambda row: row["val_mae"])
    assert best["val_mae"] < 10
    assert "Predicted and true values" in (folder / "report.html").read_text()


@pytest.mark.slow
def test_labels_are_learned(made):
    folder = made("multilabel").folder
    table = rows_of(folder / "classes.csv")
    assert [row["class"] for row in table] == ["up", "down"]
    assert min(float(row["auc"]) for row in table) > 0.75
    areas = [float(row["auc"]) for row in table]
    assert metrics(folder)["test_auc"] == pytest.approx(np.mean(areas))
    assert {row["label_down"] for row in predictions(folder)} == {"", "0", "1"}
    page = (folder / "report.html").read_text()
    assert "<h2>Labels</h2>" in page
    assert "the bags of which it is known" in page


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [*[*FLAGS][:3], pytest.param("multilabel", marks=pytest.mark.slow)]
)
def test_saved_predictions_give_the_metrics_of_the_run(name, made):
    """So series of runs and `tfbig compare` have their intervals."""
    folder = made(name).folder
    found = judgement.means([judgement.read(folder)])
    assert found
    assert found == pytest.approx({key: metrics(folder)[key] for key in found}, rel=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["survival", *(pytest.param(n, marks=pytest.mark.slow) for n in [*FLAGS][1:])]
)
def test_evaluate_equals_the_run(name, made, tmp_path):
    folder = made(name).folder
    assert main(["evaluate", str(folder), "--out", str(tmp_path)]) == 0
    assert predictions(tmp_path) == predictions(folder)
    numbers = [
        {k: v for k, v in metrics(f).items() if "test" in k or "median" in k}
        for f in (folder, tmp_path)
    ]
    assert numbers[0] == numbers[1]
    for table in ("risk_groups.csv", "survival_auc.csv", "classes.csv"):
        if (folder / table).exists():
            assert (tmp_path / table).read_text() == (folder / table).read_text()


@pytest.mark.slow
@pytest.mark.parametrize("censored", [False, True])
def test_another_table(censored, made, tmp_path):
    """Other cases are judged with the cuts and the median risk of the run; without an event there is no concordance."""
    data, folder = made("survival")
    rows = [row for row in rows_of(data / "bags.csv") if row["split"] == "val"][:8]
    for row in rows:
        row |= {"bag": str(data / row["bag"]), "split": "test"}
        row["event"] = "0" if censored else row["event"]
    write_table(tmp_path / "other" / "bags.csv", rows)
    flags = ["--data", str(tmp_path / "other"), "--out", str(tmp_path / "out")]
    assert main(["evaluate", str(folder), *flags]) == 0
    found = metrics(tmp_path / "out")
    assert found["median_risk"] == metrics(folder)["median_risk"]
    assert ("test_concordance" in found) != censored
    assert [*predictions(tmp_path / "out")[0]] == [*predictions(folder)[0]]


@pytest.mark.slow
@pytest.mark.parametrize("name", FLAGS)
def test_resume(name, made, tmp_path):
    """A run of fewer epochs that is resumed equals the whole run; the model file can be loaded with its loss."""
    data, whole = made(name)
    target, _, flags = FLAGS[name]
    out = tmp_path / "out"
    assert target_bags.run(data, out, target, *flags, "--epochs", "2") == 0
    epochs = str(len(history(whole)))
    assert train.main(["--resume", "--out", str(out), "--epochs", epochs, "--quiet"]) == 0
    assert history(out) == history(whole)
    assert predictions(out) == predictions(whole)
    model = keras.models.load_model(out / "model.keras")
    assert type(model.loss[0] if isinstance(model.loss, list) else model.loss).__name__ in (
        *("DiscreteTimeLoss", "CoxLoss", "MeanSquaredError", "LabelCrossEntropy"),
    )


@pytest.mark.slow
def test_seeds(made, tmp_path):
    """Each seed is evaluated with the cuts and the median of its own run."""
    data, _ = made("survival")
    out, again = tmp_path / "out", tmp_path / "again"
    flags = ("--seeds", "2", "--epochs", "1")
    assert target_bags.run(data, out, "survival", *flags) == 0
    table = {row["metric"]: row for row in rows_of(out / "runs.csv")}
    assert set(table) > {"test_concordance", "val_loss"}
    assert float(table["test_concordance"]["95 % from"]) < float(table["test_concordance"]["to"])
    assert main(["evaluate", str(out), "--out", str(again)]) == 0
    for seed in ("seed-0", "seed-1"):
        assert predictions(again / seed) == predictions(out / seed)
        assert metrics(again / seed)["median_risk"] == metrics(out / seed)["median_risk"]


@pytest.mark.slow
@pytest.mark.parametrize("flags", [(), COX], ids=["discrete", "cox"])
def test_slides(flags, cohort_table, tmp_path, capsys):
    """Tiles of slides are trained end to end, streamed, and slides are predicted."""
    rows = [
        {**row, "case_id": f"P{n}", "time": n % 7 + 1, "event": int(n % 3 > 0)}
        for n, row in enumerate(rows_of(cohort_table))
    ]
    table = write_table(tmp_path / "slides.csv", [{k: v for k, v in r.items() if k} for r in rows])
    out, run = tmp_path / "predicted", tmp_path / "run"
    command = [*cli_runs.SLIDE_BAGS, "--data", str(table), "--slides", str(cohort_table.parent)]
    command += ["--target", "survival", *(flags or ("--time-bins", "2")), "--out", str(run)]
    assert train.main([*command, "--shares", "60", "20", "20"]) == 3
    assert "risk" in predictions(run)[0]
    assert {"time", "event"} < set(rows_of(run / "slides.csv")[0])
    slide = next(str(p) for p in cohort_table.parent.rglob("s4.tif"))
    assert main(["predict", str(run), slide, "--out", str(out)]) == 0
    assert "s4.tif: risk" in capsys.readouterr().out
    (row,) = predictions(out)
    assert ("survival_" in "".join(row)) == (not flags)
    assert '"risk"' in (out / "s4.geojson").read_text()
    assert (
        main(["predict", str(run), slide, "--out", str(tmp_path / "b"), "--class-names", "a"]) == 2
    )
    assert "predicts --target survival and has no classes" in capsys.readouterr().err


def test_wrong_flags_and_splits(tmp_path, capsys):
    data = target_bags.write(tmp_path / "data", "survival", 2)
    folder = tmp_path / "run"
    folder.mkdir()
    keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)]).save(folder / "model.keras")
    (folder / "config.yaml").write_text("target: survival\n")
    assert target_bags.run(data, tmp_path / "a", "survival", "--monitor", "mae") == 2
    assert "--monitor mae: --target survival has loss and concordance" in capsys.readouterr().err
    flags = ("--test-only", str(folder))
    assert target_bags.run(data, tmp_path / "b", "regression", *flags) == 2
    assert "was trained with --target survival. Use the same" in capsys.readouterr().err
    assert target_bags.run(data, tmp_path / "c", "survival", "--time-bins", "40") == 2
    assert "--time-bins 40: the " in capsys.readouterr().err
    table = data.parent / "other"
    rows = rows_of(data / "bags.csv")
    for row in rows:
        row["bag"] = str(data / row["bag"])
        row["event"] = "0" if row["split"] == "train" else "1"
    write_table(table / "bags.csv", rows)
    assert target_bags.run(table, tmp_path / "d", "survival") == 1
    assert "the 64 bags of split 'train' have no event" in capsys.readouterr().err
    assert not any((tmp_path / name).exists() for name in "abcd")


def test_a_run_without_a_median_cannot_be_compared(tmp_path):
    (tmp_path / "metrics.json").write_text("{}")
    with pytest.raises(SourceError, match="has no median_risk in metrics"):
        SurvivalTarget(None).reference(None, None, str(tmp_path))


def test_risks_of_a_case_are_averaged():
    labels = np.array([[5, 1, 2], [7, 0, 0], [5, 1, 2], [9, 1, 1]], float)
    part = BagSet((), labels)
    risks, times, events = survival_target.by_case(np.array([1.0, 3.0, 2.0, 4.0]), part)
    assert (risks.tolist(), times.tolist(), events.tolist()) == ([3, 4, 1.5], [7, 9, 5], [0, 1, 1])


def test_values_are_scaled_back():
    part = BagSet((), np.array([[90.0], [110.0]]))
    assert regression_target.scale_of(part) == (100, 10)
    target = RegressionTarget(100, 10)
    np.testing.assert_allclose(target.labels(part, None), [[-1], [1]])
    np.testing.assert_allclose(target.predicted(np.array([[-1], [0.5]])), [[90], [105]])


def test_the_scale_of_a_saved_run_stays():
    """A run that is evaluated or continued keeps the scale that its own training set had."""
    part = BagSet((), np.array([[90.0], [110.0]]))
    data = Data(part, part, part)
    for given, expected in (((1.0, 2.0), (1.0, 2.0)), (None, (100, 10))):
        settings = training.parse(["--task", "mil", "--target", "regression"])
        decided = targets.decided(replace(settings, value_scale=given), data)
        assert decided["value_scale"] == expected


def test_all_targets_are_offered():
    for name, kind in targets.TARGETS.items():
        config = {"target": name, "survival_loss": "cox", "alpha": 0.0, "value_scale": [1.0, 2.0]}
        assert isinstance(targets.of_config(config, ("a", "b")), kind)
