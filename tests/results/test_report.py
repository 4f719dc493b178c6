"""Reports: what they hold, how slides are laid out in them, and the page in a browser without a screen."""

import base64
import io
import json
import re
import shutil
import tempfile
import time

import numpy as np
import pytest
from PIL import Image

from tfbig import SourceError
from tfbig.results import report, run_folder, slide_viewer
from tfbig.results.geojson import COLOURS

SLIDE = "slide <b>&amp; one"
BROWSER, DRIVER = (shutil.which(name) for name in ("chromium", "chromedriver"))


def test_halves_have_the_average_colour_and_sides_rounded_up():
    picture = np.arange(5 * 3 * 3, dtype=np.uint8).reshape(5, 3, 3)
    whole, half, quarter, last = slide_viewer.pyramid(picture, 1)
    assert whole is picture
    assert [p.shape for p in (half, quarter, last)] == [(3, 2, 3), (2, 1, 3), (1, 1, 3)]
    assert half[0, 0].tolist() == np.rint(picture[:2, :2].mean((0, 1))).astype(int).tolist()
    assert half[2, 1].tolist() == picture[4, 2].tolist()


def test_colours_of_halves_are_averages_by_opacity():
    picture = np.zeros((2, 2, 4), np.uint8)
    picture[0, 0] = 200, 100, 50, 255
    _, half = slide_viewer.pyramid(picture, 1)
    assert half[0, 0].tolist() == [200, 100, 50, 64]


def test_an_overlay_of_classes_has_their_colours_and_none_for_the_background():
    overlay = slide_viewer.of_classes("found", np.array([[0, 1], [2, 9]]), [*"abcdefghij"])
    assert overlay.picture[0, 0].tolist() == [0, 0, 0, 0]
    assert overlay.picture[0, 1].tolist() == [*COLOURS[0], 255]
    assert overlay.picture[1, 1].tolist() == [*COLOURS[0], 255]  # colours come in turn
    assert overlay.legend[:2] == (("#009e73", "b"), ("#d55e00", "c"))


def test_an_overlay_of_values_is_brightest_where_they_are_largest():
    values = np.array([[0.0, 0.1], [0.4, np.nan]], np.float32)
    overlay = slide_viewer.of_values("attention", values)
    light = overlay.picture[..., :3].sum(-1)
    assert light[0, 0] < light[0, 1] < light[1, 0]
    opacity = overlay.picture[..., 3]
    assert opacity[0, 0] == round(0.3 * 255) < opacity[0, 1] < opacity[1, 0] == 255
    assert opacity[1, 1] == 0
    assert [text for _, text in overlay.legend] == ["0", "0.394 or more"]  # the 99th of 100
    assert slide_viewer.of_values("none", np.zeros((2, 2))).legend[1][1] == "0 or more"


def picture_of(rows, columns):
    down, across = np.mgrid[:rows, :columns]
    return np.stack([down % 256, across % 256, 0 * down + 90], -1).astype(np.uint8)


@pytest.fixture
def run(tmp_path):
    """The folder of a run with everything in it."""
    folder = tmp_path / "my run"
    folder.mkdir()
    run_folder.write_yaml(folder / "config.yaml", {"task": "mil", "lr": 0.001, "sizes": [1, 2]})
    run_folder.write_versions(folder)
    (folder / "plan.txt").write_text("Plan for an image of 1 x 2 < 3\n")
    metrics = {"mode": "offload", "epochs": 3, "test_auc": 0.912345, "planned_bytes": 3 << 30}
    metrics |= {"peak_bytes": 2 << 30, "confusion": [[7, 1], [2, 5]]}
    run_folder.write_json(
        folder / "metrics.json", metrics | {"left_out": [["bad.svs", "is no <TIFF>"]]}
    )
    row = {"slide": SLIDE, "label": 0, "predicted": 1, "probability_no": 0.4}
    run_folder.write_csv(folder / "predictions.csv", [row | {"probability_yes": 0.6}])
    Image.fromarray(picture_of(20, 30)).save(folder / "learning_curve.png")
    Image.fromarray(picture_of(20, 31)).save(folder / "overlay.png")
    labels = np.zeros((60, 100), int)
    labels[:, 50:] = 1
    heat = np.arange(6, dtype=np.float32).reshape(2, 3)
    overlays = [
        slide_viewer.of_classes("mask", labels, ("ground", "tissue")),
        slide_viewer.of_values("attention", heat, 1.2),
    ]
    slide_viewer.write_view(folder, "one", picture_of(600, 1000), overlays, title=SLIDE, mpp=2.5)
    slide_viewer.write_view(folder, "two", picture_of(100, 80)[..., :1])
    return folder


def views_of(page):
    return json.loads(re.search(r'id="views">(.*?)</script>', page)[1])


def decoded(url):
    kind, data = url.split(",")
    assert kind in ("data:image/jpeg;base64", "data:image/png;base64")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))


def test_a_report_holds_all_of_a_run_and_asks_for_nothing_else(run):
    page = report.write_report(run).read_text()
    for text in (
        "my run",
        "test auc",
        "0.9123",
        "2.0 GiB",
        "3.0 GiB",
        "1 x 2 &lt; 3",
        "is no &lt;TIFF&gt;",
    ):
        assert text in page, text
    for text in (
        "slide &lt;b&gt;&amp;amp; one",
        'class="wrong"',
        "<th>no</th>",
        "1, 2",
        "2 epochs",
    ):
        assert (text in page) == (text != "2 epochs"), text
    assert page.count('src="data:image/png;base64,') == 2  # the curve and the overlay
    own = page.replace(report._asset("openseadragon.min.js"), "")
    assert not re.search(r'(src|href)="(?!data:)|@import|fetch\(|https?://', own)
    assert "<b>" not in page.replace(report._asset("openseadragon.min.js"), "")


def test_the_tiles_of_a_view_are_the_picture(run):
    first, second = views_of(report.write_report(run).read_text())
    assert (first["title"], first["mpp"], second["mpp"]) == (SLIDE, 2.5, None)
    image = first["image"]
    assert [(len(level), len(level[0])) for level in image["levels"]] == [(1, 1), (2, 2)]
    whole = np.vstack([np.hstack([decoded(u) for u in row]) for row in image["levels"][-1]])
    assert whole.shape == (600, 1000, 3)
    assert abs(whole.astype(int) - picture_of(600, 1000)).mean() < 4  # JPEG, twice
    mask, heat = first["overlays"]
    found = np.vstack([np.hstack([decoded(u) for u in row]) for row in mask["image"]["levels"][-1]])
    assert found.shape == (600, 1000, 4)
    assert (found[:, :500, 3] == 0).all()
    assert (found[:, 500:] == (*COLOURS[0], 255)).all()
    assert heat["share"] == 1.2


def test_only_some_slides_are_embedded(run):
    page = report.write_report(run, max_views=1).read_text()
    assert len(views_of(page)) == 1
    assert "1 more are in the folder" in page


def test_a_run_with_nothing_but_its_settings(tmp_path):
    run_folder.write_yaml(tmp_path / "tile.yaml", {"size": 256})
    page = report.write_report(tmp_path).read_text()
    assert "<th>size</th>" in page
    assert "<script>" not in page


def test_what_is_no_run_or_damaged_is_an_error(tmp_path, run):
    with pytest.raises(SourceError, match="is no folder of a run"):
        report.write_report(tmp_path)
    (run / "metrics.json").write_text("{")
    with pytest.raises(SourceError, match=r"cannot be reported: a file of it is damaged"):
        report.write_report(run)
    assert not (run / report.NAME).exists()


@pytest.fixture
def browser():
    webdriver = pytest.importorskip("selenium.webdriver")
    if not (BROWSER and DRIVER):
        pytest.skip("needs chromium and chromedriver")
    options = webdriver.ChromeOptions()
    options.binary_location = BROWSER
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        for flag in (
            *("headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run"),
            *("disable-background-networking", "disable-component-update", "disable-sync"),
            *("window-size=1200,900", f"user-data-dir={profile}"),
        ):
            options.add_argument(f"--{flag}")
        driver = webdriver.Chrome(options, webdriver.chrome.service.Service(DRIVER))
        yield driver
        driver.quit()


def pixel(browser, across, down):
    """Colour at a point of the picture in the view, in shares of the first slide's width."""
    png = browser.find_element("id", "zoom").screenshot_as_png
    shown = np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)
    point = browser.execute_script(
        "const p = tfbig.viewer.viewport.pixelFromPoint(new OpenSeadragon.Point(arguments[0], "
        "arguments[1])); return [p.y, p.x]",
        *(across, down),
    )
    row, column = (round(n) for n in point)
    return shown[row - 2 : row + 3, column - 2 : column + 3].mean((0, 1))


def zoom_of(browser):
    """How far the slide is enlarged, and pixels of the screen that the scale bar is long."""
    script = "return [tfbig.viewer.viewport.getZoom(true), document.querySelector('#scale i').offsetWidth]"
    return tuple(browser.execute_script(script))


def settled(browser, wanted, seconds=20):
    """Waits until a script gives true."""
    ends = time.monotonic() + seconds
    while not browser.execute_script(f"return {wanted}"):
        assert time.monotonic() < ends, f"{wanted} did not come true"
        time.sleep(0.1)
    time.sleep(0.7)  # an animation takes half a second


def test_a_report_in_a_browser(run, browser):
    """Opened as a file: the slide, a zoom, sliders of the overlays, and the other slide."""
    browser.get(report.write_report(run).as_uri())
    loaded = (
        "tfbig.viewer.world.getItemCount() == 3 && tfbig.viewer.world.getItemAt(2).getFullyLoaded()"
    )
    settled(browser, loaded)

    def slide(number, value):
        browser.execute_script(
            "const s = document.getElementById(arguments[0]); s.value = arguments[1]; "
            "s.dispatchEvent(new Event('input'))",
            *(f"opacity-{number}", value),
        )
        time.sleep(0.7)

    at, own = (0.75, 0.3), picture_of(600, 1000)[300, 750]
    slide(0, 0), slide(1, 0)
    assert abs(pixel(browser, *at) - own).max() < 25  # a slope, scaled down
    slide(0, 100)
    assert abs(pixel(browser, *at) - COLOURS[0]).max() < 6
    slide(0, 50)
    assert abs(pixel(browser, *at) - (own + np.array(COLOURS[0])) / 2).max() < 20
    before, bar = zoom_of(browser)
    browser.find_element("id", "nearer").click()
    time.sleep(0.8)
    assert zoom_of(browser) == (pytest.approx(2 * before), pytest.approx(2 * bar, rel=0.01))
    assert browser.find_element("id", "scale").text == "200 \N{MICRO SIGN}m"
    browser.execute_script(
        "const w = document.getElementById('which'); w.value = 1; w.dispatchEvent(new Event('change'))"
    )
    settled(browser, "tfbig.viewer.world.getItemCount() == 1")
    assert not browser.find_element("id", "scale").is_displayed()
    assert browser.get_log("browser") == []
