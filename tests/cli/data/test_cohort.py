"""Slides of a table: labels, files and splits, and runs of every task that learns from them."""

import csv
import json
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
import tifffile

import train
from tfbig import SourceError, sources
from tfbig.cli.data import cohort, splits
from tfbig.cli.main import main
from tfbig.data.worker_shards import Shard

FLAGS = {
    **dict.fromkeys(
        (
            "slides",
            "splits",
            "folds",
            "magnification",
            "mpp_of",
            "reader",
            "class_names",
            "test_only",
            "confine",
        )
    ),
    "fold": 0,
    "seed": 0,
    "mpp": None,
}


def slide(path, colour, side=320):
    """Bright, with a square of tissue in its middle."""
    image = np.full((side, side, 3), 240, np.uint8)
    image[side // 4 : -side // 4, side // 4 : -side // 4] = colour
    image -= np.random.default_rng(len(path.name)).integers(0, 30, image.shape, np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    resolution = {"resolution": (20000, 20000), "resolutionunit": "CENTIMETER"}  # 0.5 um
    tifffile.imwrite(path, image, photometric="rgb", tile=(128, 128), **resolution)


def table_of(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture
def data(tmp_path):
    """Ten slides of two kinds, one of them damaged, and one that is not there."""
    rows = []
    for number in range(10):
        kind = ("purple", "red")[number % 2]
        path = tmp_path / "data" / f"centre {number % 3}" / f"s{number}.tif"
        slide(path, (130, 70, 160) if kind == "purple" else (200, 60, 80))
        split = "train" if number < 6 else "val" if number < 8 else "test"
        rows.append(
            {"case_id": f"c{number}", "slide_id": f"s{number}", "label": kind, "split": split}
        )
    (tmp_path / "data" / "centre 1" / "s1.tif").write_bytes(b"II*\0 no slide")
    rows.append({"case_id": "c10", "slide_id": "s10", "label": "red", "split": "train"})
    return table_of(tmp_path / "data" / "slides.csv", rows)


def settings(table, **changes):
    return Namespace(**FLAGS | {"data": str(table)} | changes)


def test_labels_may_be_names_and_slides_are_found_however_deep(data):
    found = cohort.read(settings(data))
    assert found.classes == ("purple", "red")
    assert [row["label"] for row in found.rows] == [0, 1] * 5 + [1]
    assert found.rows[4]["path"] == data.parent / "centre 1" / "s4.tif"
    assert found.rows[10]["path"] is None
    assert len(found.of_split("train")) == 7
    assert cohort.read(settings(data.parent)).rows == found.rows


def test_paths_of_the_table_win_and_numbers_are_classes(data, tmp_path):
    slide(tmp_path / "elsewhere.tif", (130, 70, 160))
    rows = [{"slide_id": "s0", "label": 2, "path": tmp_path / "elsewhere.tif"}]
    rows += [{"slide_id": "s9", "label": 0, "path": "centre 0/s9.tif"}]  # beside the table
    rows += [{"slide_id": f"s{n}", "label": n % 2, "path": ""} for n in range(2, 9)]
    found = cohort.read(settings(table_of(data.parent / "own.csv", rows)))
    assert found.classes == ("0", "1", "2")
    assert found.rows[0]["path"] == tmp_path / "elsewhere.tif"
    assert found.rows[1]["path"] == data.parent / "centre 0" / "s9.tif"
    assert found.rows[2]["path"].name == "s2.tif"
    assert {row["split"] for row in found.rows} >= {"train", "test"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": None}, "slides need --data FILE"),
        ({"data": "none.csv"}, "there is no such file"),
        ({"slides": "."}, "holds none of the 11 slides"),
        ({"splits": "none.csv"}, r"cannot be read .* Check --splits"),
        ({"folds": 2}, "expected 3 folds or more"),
        ({"folds": 5, "fold": 5}, "a fold from 0"),
        ({"folds": 30}, "11 cases make no 30 folds"),
    ],
)
def test_tables_and_flags_that_cannot_be_used(change, message, data, tmp_path):
    if change.get("slides"):
        change = {"slides": str(tmp_path / "empty")}
        (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match=message):
        cohort.read(settings(data, **change))


def test_classes_of_a_run_hold_for_other_tables(data):
    """A table with one of them, or with one that is none."""
    known = settings(data, class_names=["purple", "red"])
    fewer = table_of(data.parent / "fewer.csv", [{"slide_id": "s3", "label": "red"}])
    assert cohort.read(settings(fewer, class_names=known.class_names)).rows[0]["label"] == 1
    other = table_of(data.parent / "other.csv", [{"slide_id": "s3", "label": "blue"}])
    with pytest.raises(SourceError, match="slide s3 has label 'blue'; expected one of purple, red"):
        cohort.read(settings(other, class_names=known.class_names))


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("s0,red\ns2,purple\ns0,purple", "slide s0 is in lines 2 and 4"),
        ("s0,red\ns2,", "line 3: has no label"),
        ("s0,red\ns2,red", "has one label alone: red"),
        ("s0,red\ns2,1", "has numbers and names: 1, red"),
    ],
)
def test_tables_that_are_most_likely_wrong(lines, message, data):
    table = data.parent / "wrong.csv"
    table.write_text(f"slide_id,label\n{lines}\n")
    with pytest.raises(SourceError, match=message):
        cohort.read(settings(table))


def test_tables_of_a_spreadsheet(data):
    """A mark of the byte order before the first column, and line ends of Windows."""
    table = data.parent / "sheet.csv"
    table.write_bytes(b"\xef\xbb\xbf" + data.read_bytes().replace(b"\n", b"\r\n"))
    assert cohort.read(settings(table)).rows == cohort.read(settings(data)).rows


def test_few_slides_make_no_splits(data):
    rows = [{"slide_id": f"s{n}", "label": n % 2} for n in range(2)]
    found = cohort.read(settings(table_of(data.parent / "few.csv", rows)))
    with pytest.raises(SourceError, match=r"of 2 slides none is in split 'val': .* --folds"):
        found.of_split("val")


def test_results_are_no_slides(data):
    (data.parent / "tiles").mkdir()
    (data.parent / "tiles" / "tile.yaml").write_text("size: 16\n")
    slide(data.parent / "tiles" / "s3.tif", (1, 2, 3))
    assert cohort.read(settings(data)).rows[3]["path"] == data.parent / "centre 0" / "s3.tif"


def test_two_files_of_one_slide_are_an_error_if_it_is_asked_for(data):
    slide(data.parent / "again" / "other.tif", (1, 2, 3))
    slide(data.parent / "other.tif", (1, 2, 3))
    cohort.read(settings(data))
    slide(data.parent / "again" / "s3.tif", (1, 2, 3))
    with pytest.raises(SourceError, match="are both slide 's3'"):
        cohort.read(settings(data))


def test_a_slide_is_seen_at_one_resolution(data):
    with pytest.raises(SourceError, match="--mpp or --magnification"):
        cohort.Opener(settings(data, mpp=1.0, magnification=5))
    path = data.parent / "centre 0" / "s0.tif"
    assert cohort.Opener(settings(data)).image(path).shape == (320, 320, 3)
    assert cohort.Opener(settings(data, mpp=1.0)).image(path).shape == (160, 160, 3)
    sizes = data.parent / "sizes.csv"
    sizes.write_text("wsi,mpp\ns0.tif,0.25\n")
    opener = cohort.Opener(settings(data, mpp=1.0, mpp_of=str(sizes)))
    assert opener.image(path).shape == (80, 80, 3)


def test_folds_test_every_case_once_and_are_stratified():
    rows = [
        {"case_id": f"c{n // 2}", "slide_id": f"s{n}", "label": str(n % 2 and n // 40)}
        for n in range(80)
    ]
    rows = [row | {"label": str(int(row["case_id"][1:]) % 4 == 0)} for row in rows]
    tested = []
    for fold in range(5):
        found = splits.fold_rows(rows, 5, fold, seed=3)
        of_case = {}
        for row in found:
            of_case.setdefault(row["case_id"], set()).add(row["split"])
        assert all(len(own) == 1 for own in of_case.values())
        held = [case for case, own in of_case.items() if own == {"test"}]
        assert len(held) == 8
        assert sum(int(case[1:]) % 4 == 0 for case in held) == 2
        assert sum(own == {"val"} for own in of_case.values()) == 8
        tested += held
    assert sorted(tested) == sorted({row["case_id"] for row in rows})
    assert splits.fold_rows(rows, 5, 0, seed=4) != splits.fold_rows(rows, 5, 0, seed=3)


def test_splits_go_to_clam_and_back(data, tmp_path):
    rows = splits.fold_rows(list(cohort.read(settings(data)).rows), 4, 2)
    splits.write_clam_splits(tmp_path / "splits_2.csv", rows)
    again = cohort.read(settings(data, splits=str(tmp_path / "splits_2.csv")))
    assert [r["split"] for r in again.rows] == [r["split"] for r in rows]
    table = list(csv.DictReader((tmp_path / "splits_2.csv").read_text().splitlines()))
    table_of(tmp_path / "few.csv", [row | {"train": ""} for row in table])
    fewer = cohort.read(settings(data, splits=str(tmp_path / "few.csv")))
    assert {row["split"] for row in fewer.rows} == {"val", "test"}
    twice = [row | {"val": row["train"]} for row in table]
    with pytest.raises(SourceError, match="is in 'train' and in 'val'"):
        splits.read_clam_splits(table_of(tmp_path / "twice.csv", twice))
    with pytest.raises(SourceError, match="expected columns train, val, test"):
        splits.read_clam_splits(table_of(tmp_path / "other.csv", [{"train": "a"}]))


def test_a_collection_in_folds(tmp_path):
    for number in range(12):
        kind = ("normal", "tumor")[number % 2]
        slide(tmp_path / f"{kind}_{number:03}.tif", (130, 70, 160), 64)
    assert (
        main(["dataset", "camelyon16", str(tmp_path), "--out", str(tmp_path), "--folds", "4"]) == 3
    )
    assert sorted(p.name for p in tmp_path.glob("splits_*")) == [
        f"splits_{n}.csv" for n in range(4)
    ]
    found = splits.read_clam_splits(tmp_path / "splits_3.csv")
    assert [*found.values()].count("test") == 3


def metrics(folder):
    return json.loads((folder / "metrics.json").read_text())


MIL = (
    *("--task", "mil", "--bags", "slides", "--mpp", "1.0", "--tile", "16", "--min-tissue", "0.5"),
    *("--epochs", "2", "--instances-at-once", "4"),
)


def test_bags_of_tiles_of_slides(data, tmp_path, capsys):
    """Found as tfbig tile finds them; slides that cannot be read are named and left out."""
    assert train.main([*MIL, "--data", str(data), "--augment", "--out", str(tmp_path / "run")]) == 3
    told = capsys.readouterr()
    assert "train: 5 bags of 32 to 32 instances (3 purple, 2 red)" in told.out
    assert "left out s1: " in told.err
    assert "left out s10: there is no such slide" in told.err
    found = metrics(tmp_path / "run")
    assert sorted(name for name, _ in found["left_out"]) == ["s1", "s10"]
    failed = list(csv.DictReader((tmp_path / "run" / "failed.csv").read_text().splitlines()))
    assert sorted(row["slide"] for row in failed) == ["s1", "s10"]
    assert np.sum(found["confusion"]) == 2
    assert (tmp_path / "run" / "report.html").exists()


def test_strictly_the_first_slide_that_cannot_be_used_ends_the_run(data, tmp_path, capsys):
    out = tmp_path / "run"
    assert train.main([*MIL, "--data", str(data), "--strict", "--out", str(out)]) == 1
    assert "s1.tif" in capsys.readouterr().err
    assert not out.exists()


def test_tiles_of_the_command_are_taken(data, tmp_path, capsys):
    """`tfbig tile` and then `--coords`: the same bags."""
    slides = [str(path) for path in sorted(data.parent.rglob("s*.tif"))]
    flags = (
        "--size",
        "16",
        "--mpp",
        "1.0",
        "--min-tissue",
        "0.5",
        "--out",
        str(tmp_path / "tiles"),
    )
    assert main(["tile", *slides, *flags]) == 3
    capsys.readouterr()
    given = train.settings_of([*MIL, "--data", str(data), "--coords", str(tmp_path / "tiles")])
    given.mpp = None
    own = train.settings_of([*MIL, "--data", str(data)])
    for first, second in zip(
        *(train.TASKS["mil"].bags.load(s).test.bags for s in (given, own)), strict=True
    ):
        assert first.name == second.name
        np.testing.assert_array_equal(
            first.read(0, first.shape[0]), second.read(0, second.shape[0])
        )
        np.testing.assert_array_equal(first.coords, second.coords)
    assert given.mpp == own.mpp == 1.0


def test_a_run_is_judged_from_wherever_and_without_its_tiles(data, tmp_path, monkeypatch):
    """Paths of its settings hold from another directory; tiles of its slides are not those of other slides."""
    slides = [str(path) for path in sorted(data.parent.rglob("s*.tif"))]
    tiled = (
        "--size",
        "16",
        "--mpp",
        "1.0",
        "--min-tissue",
        "0.5",
        "--out",
        str(tmp_path / "tiles"),
    )
    assert main(["tile", *slides, *tiled]) == 3
    monkeypatch.chdir(tmp_path)
    flags = (
        "--task",
        "mil",
        "--bags",
        "slides",
        "--data",
        "data",
        "--coords",
        "tiles",
        "--epochs",
        "1",
    )
    assert train.main([*flags, "--out", "run"]) == 3
    learned = list(csv.DictReader((tmp_path / "run" / "slides.csv").read_text().splitlines()))
    assert [row["split"] for row in learned].count("train") == 7
    monkeypatch.chdir("/")
    assert main(["evaluate", str(tmp_path / "run"), "--out", str(tmp_path / "again")]) in (0, 3)
    assert rows_of(tmp_path / "again") == rows_of(tmp_path / "run")
    slide(tmp_path / "other" / "new.tif", (200, 60, 80))
    other = table_of(tmp_path / "other" / "slides.csv", [{"slide_id": "new", "label": "red"}])
    assert (
        main(
            ["evaluate", str(tmp_path / "run"), "--data", str(other), "--out", str(tmp_path / "b")]
        )
        == 0
    )
    assert [row["bag"] for row in rows_of(tmp_path / "b")] == ["new"]
    assert np.isfinite(metrics(tmp_path / "b")["test_accuracy"])


@pytest.mark.parametrize("mode", ["patchgd", "offload"])
def test_whole_slides(mode, data, tmp_path):
    """By handle, in patches and streamed, with one set of changes for a slide in every epoch."""
    flags = ("--task", "patchgd", "--mode", mode, "--images", "slides", "--data", str(data))
    net = (
        "--patch",
        "32",
        "--latent",
        "8",
        "--head-width",
        "8",
        "--encoder",
        "small",
        "--head",
        "smaller",
    )
    more = (
        "--mpp",
        "2.0",
        "--augment",
        "slide",
        "--epochs",
        "1",
        "--batch-size",
        "1",
        "--warm-start",
        "0",
    )
    out = tmp_path / "run"
    assert train.main([*flags, *net, *more, "--folds", "3", "--out", str(out)]) == 3
    assert np.sum(metrics(out)["confusion"]) >= 3
    assert len(metrics(out)["left_out"]) == 2


def rows_of(folder):
    return list(csv.DictReader((folder / "predictions.csv").read_text().splitlines()))


def geojson_of(path):
    return json.loads(path.read_text())["features"]


def test_a_run_on_bags_predicts_slides(data, tmp_path, capsys):
    """With the tiles, the resolution and the classes of the run; and again nothing is done."""
    assert train.main([*MIL, "--data", str(data), "--out", str(tmp_path / "run")]) == 3
    out, folder = tmp_path / "out", data.parent / "centre 1"
    assert main(["predict", str(tmp_path / "run"), str(folder), "--out", str(out)]) == 3
    told = capsys.readouterr()
    assert "32 tiles, attention up to" in told.out
    assert "s1.tif" in told.err
    names = {
        f"{slide}{end}"
        for slide in ("s4", "s7")
        for end in (".geojson", ".png", "_attention.ome.tif")
    }
    own = {".lock", "failed.csv", "predict.yaml", "predictions.csv"}
    own |= {"report.html", "versions.json", "views"}
    assert {p.name for p in out.iterdir()} == names | own
    first, _ = rows_of(out)
    assert (first["slide"], first["tiles"], first["mpp_rows"]) == ("s4.tif", "32", "1.0")
    assert float(first["probability_purple"]) + float(first["probability_red"]) == pytest.approx(1)
    tiles = geojson_of(out / "s4.geojson")
    assert {f["properties"]["objectType"] for f in tiles} == {"detection"}
    numbers = [f["properties"]["measurements"] for f in tiles]
    assert sum(n["attention"] for n in numbers) == pytest.approx(1, abs=1e-5)
    assert set(numbers[0]) == {"attention", "probability_purple", "probability_red"}
    with tifffile.TiffFile(out / "s4_attention.ome.tif") as file:
        heat = file.asarray()
        assert heat.shape == (40, 40)  # a quarter of a tile of 16 pixels of 1 um
        assert 'PhysicalSizeX="4.0"' in file.ome_metadata
    assert heat.max() == pytest.approx(max(n["attention"] for n in numbers), rel=0.3)
    assert heat[0, 0] == 0
    assert main(["predict", str(tmp_path / "run"), str(folder / "s4.tif"), "--out", str(out)]) == 0
    assert "1 of 1 slides are finished" in capsys.readouterr().out


def test_a_run_is_judged_on_all_of_another_table(data, tmp_path, capsys):
    """Also if that has one class alone; and on its own table on what it never saw."""
    run = tmp_path / "run"
    assert train.main([*MIL, "--data", str(data), "--folds", "3", "--out", str(run)]) == 3
    rows = [{"slide_id": f"new{n}", "label": "red"} for n in range(3)]
    for row in rows:
        slide(tmp_path / "other" / f"{row['slide_id']}.tif", (200, 60, 80))
    other = table_of(tmp_path / "other" / "slides.csv", rows)
    capsys.readouterr()
    assert main(["evaluate", str(run), "--data", str(other), "--out", str(tmp_path / "a")]) == 0
    told = capsys.readouterr().out
    assert "test: 3 bags of 32 to 32 instances (0 purple, 3 red)" in told
    assert "train" not in told
    assert np.shape(metrics(tmp_path / "a")["confusion"]) == (2, 2)
    assert [row["label"] for row in rows_of(tmp_path / "a")] == ["red", "red", "red"]
    assert main(["evaluate", str(run), "--out", str(tmp_path / "b")]) in (0, 3)
    assert rows_of(tmp_path / "b") == rows_of(run)
    copy = data.parent / "copy.csv"
    copy.write_text(data.read_text())
    capsys.readouterr()
    assert main(["evaluate", str(run), "--data", str(copy), "--out", str(tmp_path / "c")]) in (0, 3)
    assert rows_of(tmp_path / "c") == rows_of(run)  # never what it learned from
    assert main(["evaluate", str(run), "--folds", "4"]) == 1
    assert "--folds: is for training" in capsys.readouterr().err


@pytest.mark.parametrize("mode", ["patchgd", "offload"])
def test_a_run_on_whole_slides_predicts_slides(mode, data, tmp_path):
    """As it judged them itself; with a map where the head has attention."""
    head = "transformer" if mode == "patchgd" else "smaller"
    flags = ("--task", "patchgd", "--mode", mode, "--images", "slides", "--data", str(data))
    net = (
        "--patch",
        "40",
        "--latent",
        "8",
        "--head-width",
        "8",
        "--encoder",
        "small",
        "--head",
        head,
    )
    more = ("--mpp", "2.0", "--epochs", "1", "--batch-size", "1", "--warm-start", "0")
    run, out = tmp_path / "run", tmp_path / "out"
    assert train.main([*flags, *net, *more, "--out", str(run)]) == 3
    judged = {row["image"]: row for row in rows_of(run)}
    paths = list(judged)
    assert main(["predict", str(run), *paths, "--out", str(out)]) == 0
    for row, path in zip(rows_of(out), paths, strict=True):
        assert row["slide"] == Path(path).name
        assert (row["rows"], row["columns"]) == ("80", "80")
        key = "probability_red"
        assert float(row[key]) == pytest.approx(float(judged[path][key]), abs=1e-5)
    title = Path(paths[0]).stem
    assert (out / f"{title}_attention.ome.tif").exists() == (mode == "patchgd")
    if mode == "patchgd":
        codes = geojson_of(out / f"{title}.geojson")
        assert len(codes) == 4  # of 2 x 2 patches
        assert codes[0]["geometry"]["coordinates"][0][2] == [0, 160]
        assert codes[1]["properties"]["classification"]["name"] == "region"
    assert len(list((out / "views").glob("*.json"))) == len(paths)


def test_images_are_changed_anew_in_every_epoch(data):
    flags = ("--task", "patchgd", "--images", "slides", "--data", str(data), "--augment", "slide")
    found = train.settings_of([*flags, "--batch-size", "1"])
    images = train.TASKS["patchgd"].images
    train_set = images.load(found).train
    seen = images.dataset(train_set, found, learns=True)
    epochs = [[handle.numpy()[0].decode() for handle, _ in seen] for _ in range(2)]
    assert all("?seed=" in handle for epoch in epochs for handle in epoch)
    assert not set(epochs[0]) & set(epochs[1])
    again = images.dataset(train_set, found, learns=True, shard=Shard(1))
    assert [handle.numpy()[0].decode() for handle, _ in again] == epochs[1]
    plain = images.dataset(train_set, found)
    assert not any("?" in handle.numpy()[0].decode() for handle, _ in plain)
    assert isinstance(sources.resolve(epochs[0][0]), sources.AugmentedImage)
