"""How does one get from slides with one label each to predictions, attention maps for QuPath, and a report?

    python examples/slides_by_label.py [--out runs/by_label] [--epochs 12] [--tile 64]

Cuts the slides in examples/data into small slides with their labels in a table, the organ; trains an encoder and an
attention pool on the tiles that hold tissue, end to end, as `tfbig train --task mil --bags slides`; then asks a whole
slide for its organ, as `tfbig predict`. The parts of one slide look alike, so this shows how things go together, not
how good the network is. Ends by printing the two reports: open them in a browser.
"""

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
LEAST = 0.3
"""Tissue of a part."""


def cut(folder, side):
    """Parts of the slides as slides of their own with the size of their pixels; gives the rows of the table."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for name, organ in SLIDES.items():
        slide = open_slide(DATA / f"{name}.tif")
        image, tissue = slide.level(), find_tissue(slide)
        places = [
            (top, left)
            for top in range(0, slide.shape[0] - side + 1, side)
            for left in range(0, slide.shape[1] - side + 1, side)
            if tissue.shares([[left, top]], side)[0] >= LEAST
        ]
        for number, (top, left) in enumerate(places):
            part = image.crop((top, top + side), (left, left + side))
            part.mpp = slide.mpp
            title = f"{organ}_{number:02}"
            sources.write_ome_tiff(folder / f"{title}.ome.tif", part)
            rows.append({"case_id": title, "slide_id": title, "label": organ})
        slide.close()
    return rows


def main(out="runs/by_label", epochs=12, tile=64, side=512):
    """Cuts, trains, predicts; gives the rows of the predictions."""
    out = Path(out)
    table = out / "parts" / "slides.csv"
    rows = cut(table.parent, side)
    with table.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    seen = ["--mpp", "2.1", "--tile", str(tile), "--min-tissue", "0.5"]
    learning = ["--epochs", str(epochs), "--instances-at-once", "32"]
    task = ["train", "--task", "mil", "--bags", "slides", "--data", str(table), *seen, *learning]
    whole = [str(DATA / f"{name}.tif") for name in SLIDES]
    for line in (
        [*task, "--out", str(out / "run")],
        ["predict", str(out / "run"), *whole, "--out", str(out / "found")],
    ):
        print("tfbig", *line, flush=True)
        if tfbig_command(line):
            raise SourceError(f"tfbig {line[0]} did not end well")
    with (out / "found" / "predictions.csv").open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", default="runs/by_label")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--tile", type=int, default=64)
    arguments = parser.parse_args()
    main(arguments.out, arguments.epochs, arguments.tile)
