"""Reports: their contents, the tiles of slides in them, and the page in a headless browser."""

import base64
import html
import io
import json
import re
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tfbig import SourceError
from tfbig.cli.settings import training
from tfbig.results import report, run_folder, slide_viewer
from tfbig.results.geojson import COLOURS

SLIDE = "slide <b>&amp; one"
BROWSER, DRIVER = (shutil.which(name) for name in ("chromium", "chromedriver"))


def gradient_image(rows, columns):
    down, across = np.mgrid[:rows, :columns]
    return np.stack([down % 256, across % 256, 0 * down + 90], -1).astype(np.uint8)


@pytest.fixture
def run(whole_run, tmp_path):
    """Run folder with all files, which a test may change."""
    return Path(shutil.copytree(whole_run, tmp_path / whole_run.name))


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory):
    """Run folder with all files."""
    folder = tmp_path_factory.mktemp("whole") / "my run"
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
    Image.fromarray(gradient_image(20, 30)).save(folder / "learning_curve.png")
    Image.fromarray(gradient_image(20, 31)).save(folder / "overlay.png")
    labels = np.zeros((60, 100), int)
    labels[:, 50:] = 1
    heat = np.arange(6, dtype=np.float32).reshape(2, 3)
    overlays = [
        slide_viewer.class_overlay("mask", labels, ("ground", "tissue")),
        slide_viewer.attention_overlay(heat, 6, 1.2),
    ]
    slide_viewer.write_view(
        folder, "one", gradient_image(600, 1000), overlays, title=SLIDE, mpp=2.5
    )
    slide_viewer.write_view(folder, "two", gradient_image(100, 80)[..., :1])
    return folder


def views_of(page):
    return json.loads(re.search(r'id="views">(.*?)</script>', page)[1])


def decoded(url):
    kind, data = url.split(",")
    assert kind in ("data:image/jpeg;base64", "data:image/png;base64")
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))


def test_report_contains_the_run_and_no_external_links(run):
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
    ):
        assert text in page, text
    assert "2 epochs" not in page
    assert page.count('src="data:image/png;base64,') == 2  # the curve and the overlay
    page_itself = page.replace(report._asset("openseadragon.min.js"), "")
    assert not re.search(r'(src|href)="(?!data:)|@import|fetch\(|https?://', page_itself)
    assert "<b>" not in page.replace(report._asset("openseadragon.min.js"), "")


@pytest.mark.parametrize(("epochs", "words"), [(1, "1 epoch;"), (2, "2 epochs;")])
def test_line_under_the_title(epochs, words, run):
    run_folder.write_json(run / "metrics.json", {"mode": "offload", "epochs": epochs})
    (run / "config.yaml").write_text("task: mil\n")
    page = report.write_report(run).read_text()
    assert f"task mil; mode offload; {words}" in page


def test_tiles_of_a_view_form_the_image(run):
    first, second = views_of(report.write_report(run).read_text())
    assert (first["title"], first["width_um"], second["width_um"]) == (SLIDE, 2500, None)
    image = first["image"]
    assert [(len(level), len(level[0])) for level in image["levels"]] == [(1, 1), (2, 2)]
    whole = np.vstack([np.hstack([decoded(u) for u in row]) for row in image["levels"][-1]])
    assert whole.shape == (600, 1000, 3)
    assert abs(whole.astype(int) - gradient_image(600, 1000)).mean() < 4  # JPEG, twice
    mask, heat = first["overlays"]
    shown = np.vstack([np.hstack([decoded(u) for u in row]) for row in mask["image"]["levels"][-1]])
    assert shown.shape == (600, 1000, 4)
    assert (shown[:, :500, 3] == 0).all()
    assert (shown[:, 500:] == (*COLOURS[0], 255)).all()
    assert heat["share"] == pytest.approx(1, abs=1 / 852)  # 2 x 3 pixels of 341, cut to the slide


def test_number_of_embedded_slides_is_limited(run):
    page = report.write_report(run, max_views=1).read_text()
    assert len(views_of(page)) == 1
    assert "1 more are in the folder" in page


def test_name_of_a_single_slide_is_text(run):
    name = f'<strong id="only">{html.escape(SLIDE)}</strong>'
    assert name in report.write_report(run, max_views=1).read_text()
    assert 'id="only"' not in report.write_report(run).read_text()


NO_TEST = "There were no test images: &#34;test&#34; is of the validation images"


@pytest.mark.parametrize(
    ("metrics", "settings", "sentence"),
    [
        ({"tested_on": "val"}, {"task": "segmentation"}, NO_TEST),
        ({"tested_on": "test"}, {"task": "segmentation"}, "neither training nor the choice"),
        ({}, {"task": "mil", "test_only": "/runs/one"}, ""),  # an evaluation
        ({}, {"size": 256}, ""),  # of another command
    ],
)
def test_results_say_which_images_they_are_of(tmp_path, metrics, settings, sentence):
    run_folder.write_yaml(tmp_path / "config.yaml", settings)
    run_folder.write_json(tmp_path / "metrics.json", {"test_dice": 0.5} | metrics)
    rows = [{"slide_id": n, "split": s} for n, s in enumerate(["train", "train", "val"])]
    run_folder.write_csv(tmp_path / "slides.csv", rows)
    page = report.write_report(tmp_path).read_text()
    assert sentence in page
    is_training = bool(sentence)
    assert ("Slides: 2 for training, 1 for validation." in page) == is_training
    assert (" images that " in page or "There were no test" in page) == is_training


DELONG, THRESHOLD, PIXELS, KNOWN = (
    "(DeLong)",
    "at the threshold",
    "over the labelled pixels",
    "is judged by",
)


@pytest.mark.parametrize(
    ("columns", "predictions", "title", "said"),
    [
        (("auc", "auc_low", "threshold", "f1"), {"label": "a"}, "Classes", {DELONG, THRESHOLD}),
        (("auc", "auc_low", "threshold"), {"bag": 1}, "Labels", {DELONG, THRESHOLD, KNOWN}),
        (("pixels", "iou", "f1", "sensitivity"), {"scene": "s0"}, "Classes", {PIXELS}),
    ],
)
def test_notes_explain_the_columns_of_classes(tmp_path, columns, predictions, title, said):
    run_folder.write_yaml(tmp_path / "config.yaml", {"task": "any"})
    rows = [{"class": name, **dict.fromkeys(columns, 0.5)} for name in "ab"]
    run_folder.write_csv(tmp_path / "classes.csv", rows)
    run_folder.write_csv(tmp_path / "predictions.csv", [predictions])
    page = report.write_report(tmp_path).read_text()
    assert f"<h2>{title}</h2>" in page
    assert "Each class against all others." in page
    assert {words for words in (DELONG, THRESHOLD, PIXELS, KNOWN) if words in page} == said


def test_run_with_settings_only(tmp_path):
    run_folder.write_yaml(tmp_path / "tile.yaml", {"size": 256})
    page = report.write_report(tmp_path).read_text()
    assert "<th>size</th>" in page
    assert "<script>" not in page


def test_settings_that_play_no_part_are_left_out(tmp_path):
    settings = {"task": "mil", "target": "class", "survival_loss": "cox", "lr": 0.5}
    run_folder.write_yaml(tmp_path / "config.yaml", settings)
    page = report.write_report(tmp_path, used=training.in_use).read_text()
    assert "<th>lr</th>" in page
    assert "survival" not in page
    assert "config.yaml also has settings that play no part in this run." in page
    run_folder.write_yaml(tmp_path / "config.yaml", settings | {"target": "survival"})
    page = report.write_report(tmp_path, used=training.in_use).read_text()
    assert "<th>survival loss</th>" in page
    assert "play no part" not in page


ATTACK = "</script><script>document.title = 'taken'</script><img src=x onerror=\"document.title='taken'\">"


@pytest.fixture
def hostile_run(run):
    """Run folder whose files hold markup wherever text is allowed."""
    metrics = json.loads((run / "metrics.json").read_text())
    metrics |= {ATTACK: 1.0, "mode": ATTACK, "epochs": ATTACK, "left_out": [[ATTACK, ATTACK]]}
    metrics["beside"] = {"run": ATTACK, "mode": ATTACK, ATTACK: 1.0, f"{ATTACK}_bytes": 3}
    run_folder.write_json(run / "metrics.json", metrics)
    run_folder.write_yaml(run / "config.yaml", {ATTACK: ATTACK, "list": [ATTACK]})
    run_folder.write_json(run / "versions.json", {"tfbig": ATTACK, "time": ATTACK, ATTACK: ATTACK})
    row = {ATTACK: ATTACK, "label": ATTACK, "predicted": 1, f"probability_{ATTACK}": 0.4}
    run_folder.write_csv(run / "predictions.csv", [row | {"probability_b": 1}])
    run_folder.write_csv(run / "failed.csv", [{"name": ATTACK, "reason": ATTACK}])
    (run / "plan.txt").write_text(ATTACK)
    shutil.copy(run / "overlay.png", run / "<img src=x onerror=alert(1)>.png")
    view = json.loads((run / "views" / "one.json").read_text())
    view["title"] = view["overlays"][0]["name"] = view["overlays"][1]["legend"][0][1] = ATTACK
    (run / "views" / "one.json").write_text(json.dumps(view))
    return run


def test_markup_in_a_run_folder_is_escaped(hostile_run):
    page = report.write_report(hostile_run).read_text()
    assert page.count("<script") == 3  # the views, OpenSeadragon, and that of the page
    assert "<img src=x" not in page
    policy = html.unescape(page)
    assert "default-src 'none'" in policy and "script-src 'sha256-" in policy


@pytest.mark.parametrize("name", ["../secret.jpg", "/etc/passwd", "a/b.jpg", 3, None])
def test_views_name_files_of_their_folder_only(run, name):
    (run / "secret.jpg").write_bytes((run / "views" / "two.jpg").read_bytes())
    for layer in ("slide", "overlay"):
        view = json.loads((run / "views" / "one.json").read_text())
        (view if layer == "slide" else view["overlays"][0])["file"] = name
        changed = run / "views" / "three.json"
        changed.write_text(json.dumps(view))
        with pytest.raises(
            SourceError, match=r"three\.json: is damaged \(ValueError: file .* not in"
        ):
            report.write_report(run)


@pytest.mark.parametrize("name", ["plan.txt", "overlay.png", "metrics.json", "views/two.jpg"])
def test_links_to_other_folders_are_not_followed(run, name, tmp_path):
    shutil.move(run / name, tmp_path / "secret")
    (run / name).symlink_to(tmp_path / "secret")
    with pytest.raises(
        SourceError, match=rf"{name}: leads to .*secret; expected a file in the run"
    ):
        report.write_report(run)
    (run / name).unlink()
    shutil.move(tmp_path / "secret", run / name)
    (run / "inside.txt").symlink_to(run / "plan.txt")  # a link to a file of the folder
    assert report.write_report(run).exists()


@pytest.mark.parametrize(
    "text", ['{"loss": 1' + "0" * 400 + "}", "[" * 10**5, '{"confusion": "x"}', '{"left_out": 5}']
)
def test_damaged_metrics(run, text):
    (run / "metrics.json").write_text(text)
    with pytest.raises(SourceError, match=r"my run.* is damaged \("):
        report.write_report(run)


def test_memory_of_zero_bytes(run):
    (run / "metrics.json").write_text('{"planned_bytes": 0, "peak_bytes": 0}')
    assert "Memory of the process" in report.write_report(run).read_text()


def test_errors_name_a_damaged_file_once(run):
    (run / "config.yaml").write_text("a: [")
    with pytest.raises(SourceError, match=r"^.*my run/config\.yaml: is not YAML: while") as raised:
        report.write_report(run)
    assert str(raised.value).count("my run") == 1


def test_colours_of_a_legend_are_colours(run):
    view = json.loads((run / "views" / "one.json").read_text())
    view["overlays"][0]["legend"][0][0] = "url(https://example.org)"
    (run / "views" / "one.json").write_text(json.dumps(view))
    with pytest.raises(SourceError, match=r"one\.json: is damaged \(ValueError: colour 'url"):
        report.write_report(run)


@pytest.fixture(scope="module")
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
    """Return the colour at a point of the view, given in shares of the width of the first slide."""
    view = browser.find_element("id", "zoom")
    browser.execute_script(
        "arguments[0].scrollIntoView()", view
    )  # what is below is not in a picture
    png = view.screenshot_as_png
    shown = np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(int)
    point = browser.execute_script(
        "const p = tfbig.viewer.viewport.pixelFromPoint(new OpenSeadragon.Point(arguments[0], "
        "arguments[1])); return [p.y, p.x]",
        *(across, down),
    )
    row, column = (round(n) for n in point)
    return shown[row - 2 : row + 3, column - 2 : column + 3].mean((0, 1))


def zoom_of(browser):
    """Return the zoom of the slide, and the length of the scale bar in pixels of the screen."""
    script = "return [tfbig.viewer.viewport.getZoom(true), document.querySelector('#scale i').offsetWidth]"
    return tuple(browser.execute_script(script))


def wait_until(condition, seconds=300):
    """Wait until a function returns true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.2)


def wait_for(browser, script):
    """Wait until a script returns true."""
    wait_until(lambda: browser.execute_script(f"return {script}"))


def test_report_in_a_browser(run, browser):
    """The page is opened as a file: slide, zoom, opacity sliders of the overlays, and the other slide."""
    browser.get(report.write_report(run).as_uri())
    loaded = (
        "tfbig.viewer.world.getItemCount() == 3 && tfbig.viewer.world.getItemAt(2).getFullyLoaded()"
    )
    wait_for(browser, loaded)

    def set_opacity(number, value):
        browser.execute_script(
            "const s = document.getElementById(arguments[0]); s.value = arguments[1]; "
            "s.dispatchEvent(new Event('input'))",
            *(f"opacity-{number}", value),
        )

    def shows(expected, tolerance):
        return abs(pixel(browser, 0.75, 0.3) - expected).max() < tolerance

    colour = gradient_image(600, 1000)[300, 750]
    set_opacity(0, 0)
    set_opacity(1, 0)
    wait_until(lambda: shows(colour, 25))  # a slope, scaled down
    set_opacity(0, 100)
    wait_until(lambda: shows(COLOURS[0], 6))
    set_opacity(0, 50)
    wait_until(lambda: shows((colour + np.array(COLOURS[0])) / 2, 20))
    assert browser.find_element("id", "scale").text == "200 \N{MICRO SIGN}m"
    before, bar = zoom_of(browser)
    browser.find_element("id", "nearer").click()
    after = pytest.approx(2 * before), pytest.approx(bar, rel=0.03)  # a bar of half the length
    wait_until(lambda: zoom_of(browser) == after, seconds=60)
    assert browser.find_element("id", "scale").text == "100 \N{MICRO SIGN}m"
    browser.execute_script(
        "const w = document.getElementById('which'); w.value = 1; w.dispatchEvent(new Event('change'))"
    )
    wait_for(browser, "tfbig.viewer.world.getItemCount() == 1")
    wait_until(lambda: not browser.find_element("id", "scale").is_displayed())
    assert browser.get_log("browser") == []


def test_single_slide_in_a_browser(run, browser):
    """Its name is shown, and no list of one slide."""
    browser.get(report.write_report(run, max_views=1).as_uri())
    wait_for(browser, "tfbig.viewer.world.getItemCount() == 3")
    assert browser.find_element("id", "only").text == SLIDE
    assert not browser.find_element("id", "which").is_displayed()
    assert browser.get_log("browser") == []


def test_hostile_report_in_a_browser(hostile_run, browser):
    """No text of the run folder runs, and the browser has nothing to refuse."""
    browser.get(report.write_report(hostile_run).as_uri())
    wait_for(browser, "tfbig.viewer.world.getItemCount() == 3")
    assert browser.title == hostile_run.name
    assert len(browser.find_elements("tag name", "script")) == 3
    assert browser.get_log("browser") == []
    attempt = (
        "const s = document.createElement('script'); s.textContent = \"document.title = 'x'\"; "
    )
    browser.execute_script(attempt + "document.body.append(s)")
    assert browser.title == hostile_run.name  # the policy of the page refuses other scripts
    assert "Content Security Policy" in browser.get_log("browser")[0]["message"]
