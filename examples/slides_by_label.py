"""Train on slides with one label each, then predict, with attention maps for QuPath and a report.

    python examples/slides_by_label.py [--out runs/by_label] [--epochs 12] [--tile 64]

Cuts the slides in examples/data into small slides and writes a table with their labels, the organ; trains an encoder
and an attention pool end to end on the tiles that hold tissue, as `tfbig train --task mil --bags slides` does; then
predicts the organ of each whole slide, as `tfbig predict` does. The parts of one slide look the same, so this shows how
the commands work together, not how good the network is. The script ends by printing the paths of two reports: open them
in a browser.
"""

"""## Setup"""

import argparse
import csv
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tfbig import SourceError, open_slide, sources
from tfbig.cli.main import main as tfbig_command
from tfbig.tissue.masks import find_tissue

SLIDES = {
    "esophagus_eosinophilic": "esophagus",
    "gastritis_lymphocytic": "stomach",
    "pancreas_pdac_1": "pancreas",
}
DATA = ROOT / "examples/data"
MIN_TISSUE = 0.3  # smallest share of tissue in a part

"""## Cut the slides into labelled parts"""


def cut(folder: Path, side: int) -> list[dict[str, str]]:
    """Write parts of the slides as slides with the same pixel size; return the rows of the table."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for name, organ in SLIDES.items():
        slide = open_slide(DATA / f"{name}.tif")
        image, tissue = slide.level(), find_tissue(slide)
        places = [
            (top, left)
            for top in range(0, slide.shape[0] - side + 1, side)
            for left in range(0, slide.shape[1] - side + 1, side)
            if tissue.shares([[left, top]], side)[0] >= MIN_TISSUE
        ]
        for number, (top, left) in enumerate(places):
            part = image.crop((top, top + side), (left, left + side))
            part.mpp = slide.mpp
            title = f"{organ}_{number:02}"
            sources.write_ome_tiff(folder / f"{title}.ome.tif", part)
            rows.append({"case_id": title, "slide_id": title, "label": organ})
        slide.close()
    return rows


"""
## Train and predict

Both commands could also be typed in a shell; `tfbig_command` runs them in this process.
"""


def main(
    out: str | Path = "runs/by_label", epochs: int = 12, tile: int = 64, side: int = 512
) -> list[dict[str, str]]:
    """Cut, train and predict; return the rows of the predictions."""
    out = Path(out)
    table = out / "parts" / "slides.csv"
    rows = cut(table.parent, side)
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    tiling = ["--mpp", "2.1", "--tile", str(tile), "--min-tissue", "0.5"]
    training = ["--epochs", str(epochs), "--instances-at-once", "32"]
    task = ["train", "--task", "mil", "--bags", "slides", "--data", str(table), *tiling, *training]
    whole = [str(DATA / f"{name}.tif") for name in SLIDES]
    for line in (
        [*task, "--out", str(out / "run")],
        ["predict", str(out / "run"), *whole, "--out", str(out / "found")],
    ):
        print("tfbig", *line, flush=True)
        if tfbig_command(line):
            raise SourceError(f"tfbig {line[0]} failed; see its messages above")
    with (out / "found" / "predictions.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", default="runs/by_label")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--tile", type=int, default=64)
    arguments = parser.parse_args()
    main(arguments.out, arguments.epochs, arguments.tile)
