"""A command over many slides: a bad slide does not stop the run, and finished slides are skipped."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Generic, NamedTuple, TextIO, TypeAlias, TypeVar

import tensorflow as tf
from tqdm import tqdm

from tfbig import SourceError, Stopped, TfbigError, sources
from tfbig.cli import dask, messages
from tfbig.cli import paths as cli_paths
from tfbig.cli.data import cohort, scales, side_tables, slide_folders
from tfbig.cli.input_kinds import SLIDES, InputKind
from tfbig.cli.settings import training
from tfbig.cli.settings.feature_settings import FeaturesSettings
from tfbig.cli.settings.flag import deciding, with_current_names
from tfbig.cli.settings.slide_settings import PredictSettings, TileSettings
from tfbig.cli.settings.yaml_flags import read_yaml
from tfbig.errors import one_line
from tfbig.results import geojson, report, run_folder, slide_viewer
from tfbig.sources.names import Names, title_of
from tfbig.sources.resolution import Mpp, is_plausible
from tfbig.sources.slides.slide import Slide
from tfbig.system import output_folder, progress, signals
from tfbig.tissue.outline_file import LEVEL_0, SCANNED

S = TypeVar("S", TileSettings, PredictSettings, FeaturesSettings)
BatchSettings: TypeAlias = TileSettings | PredictSettings | FeaturesSettings
"""Settings of a command over many slides."""


@dataclass(frozen=True)
class Work(Generic[S]):
    """The work on slides.

    Attributes:
        name: Name of the command.
        settings: The settings with every default filled in.
        process: Function that processes the slide of a path and returns a line to print.
        finished: Function that returns whether the slide of a path is done.
        inputs: What paths are those of. `process` opens itself what is no slide; its slide is then None.
        prepare: Function that is called once before the first slide, if any is not done; what it raises ends the
            command.
        pixels: Micrometres along rows and columns of a pixel of what `process` has read, by slide, where that is not
            the resolution of the settings: tiles of `--coords`.
        trained: Sizes of the pixels that the model was trained on, if they are known.
    """

    name: str
    settings: S
    process: Callable[[Path, Any], str]
    finished: Callable[[Path], bool]
    inputs: InputKind = SLIDES
    prepare: Callable[[], object] = lambda: None
    pixels: dict[Path, Mpp | None] = field(default_factory=dict)
    trained: tuple[Mpp, ...] = ()


_OWN_SIZE: Final = "files say the size of their pixels, or --mpp-of does. Use --mpp-of for another."
_RESULTS: Final = (run_folder.PREDICTIONS, "*.h5")
"""Files of a folder in which a slide is done: of `predict`, and of `tile` and `features`."""


class Outcome(NamedTuple):
    """Outcome of the work on a slide: a line to print, or the reason why it failed, the time, and its pixels."""

    line: str | None
    reason: str | None
    seconds: float
    scale: scales.Scale | None = None
    uses_slide_mpp: bool = False


def with_resolution(settings: S, **default: float) -> S:
    """Return the settings with the default resolution if they have none.

    Args:
        settings: Settings of the command.
        **default: The default, such as `mpp=0.5`.

    Raises:
        FlagError: More than one is set.
    """
    values = [value for value in resolution(settings).values() if value is not None]
    if len(values) > 1:
        raise cli_paths.FlagError(
            "more than one resolution; expected one of --mpp, --magnification, --level. Remove the others."
        )
    chosen: dict[str, Any] = {} if values else default
    return replace(settings, **chosen)


def resolution(settings: BatchSettings) -> dict[str, Any]:
    """The arguments of `Slide.at`."""
    return {key: getattr(settings, key) for key in ("mpp", "magnification", "level")}


def asked_resolution(settings: BatchSettings) -> dict[str, Any]:
    """The resolution that flags ask for, such as `{"mpp": 0.5}`; empty if none does."""
    return {key: value for key, value in resolution(settings).items() if value is not None}


def refuse_resolution(settings: BatchSettings, reason: str) -> None:
    """Refuse flags that ask for a resolution; `reason` says why it is not used.

    Raises:
        FlagError: A flag does.
    """
    for name, value in asked_resolution(settings).items():
        raise cli_paths.FlagError(f"--{name} {value:g}: is not used: {reason} Remove it.")


def run(settings: S, make_work: Callable[[S], Work[S]]) -> int:
    """Process every slide that is not finished, and return the exit code.

    Each Dask worker calls `make_work` too.

    A slide that fails is named on standard error and in `failed.csv`, which exists only if a slide failed.
    """
    work = make_work(settings)
    settings, folder = work.settings, Path(settings.out)
    all_paths = list_slides(settings.slides, work.inputs)
    paths = select_shard(all_paths, settings.shard)
    sizes = _sizes(settings.mpp_of, all_paths) if settings.mpp_of else {}
    if not settings.dry_run:
        _claim_folder(folder, work.name, settings, all_paths)
        _drop_old_failures(folder, work, all_paths)
    waiting = [path for path in paths if settings.dry_run or not work.finished(path)]
    if len(waiting) < len(paths):
        print(
            f"{len(paths) - len(waiting)} of {len(paths)} {work.inputs.name} are already finished"
        )
    progress.show(False if settings.quiet else None)
    if waiting and not (settings.dry_run or settings.dask):
        work.prepare()
    tasks = [(path, sizes.get(path)) for path in waiting]
    outcomes = (
        dask.process_slides(settings, make_work, process_slide, tasks, _failure)
        if settings.dask
        else _in_turn(work, tasks)
    )
    failed = _report_outcomes(outcomes, len(tasks), work)
    return _finish(work, len(paths), failed, changed=bool(waiting))


def _failure(reason: str) -> Outcome:
    """The outcome of a slide that was not processed."""
    return Outcome(None, reason, 0.0)


def _in_turn(
    work: Work[Any], tasks: Sequence[tuple[Path, float | None]]
) -> Iterator[tuple[Path, Outcome]]:
    """Process slide after slide."""
    for path, mpp in tasks:
        signals.check()
        yield path, process_slide(work, path, mpp)


def _report_outcomes(outcomes: Iterator[tuple[Path, Outcome]], count: int, work: Work[Any]) -> int:
    """Print and save the outcome of every slide, and return how many failed; the same reason is printed once."""
    settings = work.settings
    failed, quiet = 0, settings.quiet or not sys.stderr.isatty()
    first: dict[str, Path] = {}
    read: dict[str, scales.Scale] = {}
    uses_slide_mpp = False
    for path, outcome in tqdm(outcomes, total=count, unit=work.inputs.name[:-1], disable=quiet):
        failed += outcome.reason is not None
        if outcome.reason is None:
            _print(f"{outcome.line} ({outcome.seconds:.1f} s)", sys.stdout, quiet)
        else:
            same = first.setdefault(outcome.reason, path)
            reason = outcome.reason if same == path else f"the same as {_printable(same)}"
            _print(f"failed: {_printable(path)}: {reason}", sys.stderr, quiet)
        if not settings.dry_run:
            run_folder.save_failure(settings.out, _printable(path), outcome.reason)
        uses_slide_mpp |= outcome.uses_slide_mpp
        if outcome.scale is not None:
            read[path.name] = outcome.scale
    said = scales.lines(read)
    said += scales.against_run({name: scale.pixel for name, scale in read.items()}, work.trained)
    if settings.slide_mpp is not None and read and not uses_slide_mpp:
        said.append(f"--slide-mpp {settings.slide_mpp:g} is not used: {_OWN_SIZE}")
    for line in said:
        _print(line, sys.stderr, quiet)
    return failed


def process_slide(work: Work[Any], path: Path, mpp: float | None) -> Outcome:
    """Process a slide and report the outcome; a failure is an outcome too.

    `mpp` is micrometres per pixel at level 0, if they are not those of the file.
    """
    start = time.monotonic()
    try:
        _check_name(path)
        with ExitStack() as stack:
            slide = None
            if work.inputs.is_slide:
                slide = stack.enter_context(closing(open_slide(path, mpp, work.settings)))
            line = work.process(path, slide)
            scale, used = _scale(work, path, slide), _is_given(slide, mpp, work.settings)
    except Stopped:
        raise
    except Exception as error:  # whatever a library raises for one slide, the others are done
        if work.settings.strict:
            raise
        expected = isinstance(error, (TfbigError, OSError, ValueError, tf.errors.OpError))
        text = messages.in_flags(error, work.name)
        text = text if expected and text else f"{type(error).__name__}: {text}"
        reason = one_line(text).removeprefix(f"{path}: ")
        return Outcome(None, reason, time.monotonic() - start)
    return Outcome(line, None, time.monotonic() - start, scale, used)


def _scale(work: Work[Any], path: Path, slide: Slide | None) -> scales.Scale | None:
    """The resolution at which a slide was read, for the report; None if the input is no slide."""
    if work.inputs is not SLIDES or slide is None:
        return None
    pixel = work.pixels.get(path)
    asked = asked_resolution(work.settings)
    if path not in work.pixels and slide.mpp is not None and asked:
        rows, columns = slide.steps(**asked)
        pixel = slide.mpp[0] * rows, slide.mpp[1] * columns
    return scales.scale_of(slide, pixel)


def _is_given(slide: Slide | None, mpp: float | None, settings: BatchSettings) -> bool:
    """Tell whether the size of the pixels of a slide is that of `--slide-mpp`."""
    given = settings.slide_mpp
    return slide is not None and mpp is None and given is not None and slide.mpp == (given, given)


def open_slide(path: Path, mpp: float | None, settings: BatchSettings) -> Slide:
    """Open a slide with the size of its pixels: of `--mpp-of`, else a plausible one of the file, else `--slide-mpp`.

    `mpp` is micrometres per pixel in `--mpp-of`, or None.
    """
    low_high = settings.percentiles
    slide = sources.open_slide(
        path,
        mpp=mpp,
        reader=settings.reader,
        channels=settings.channels,
        z=settings.z,
        percentiles=None if low_high is None else (low_high[0], low_high[1]),
    )
    unknown = slide.mpp is None or not is_plausible(slide.mpp)
    if unknown and mpp is None and settings.slide_mpp is not None:
        slide.mpp = (settings.slide_mpp, settings.slide_mpp)
    return slide


def _check_name(path: Path) -> None:
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise SourceError("the file name is not valid UTF-8. Rename the file.") from error


def _printable(path: Path) -> str:
    """The path as text that every file can hold."""
    return str(path).encode(errors="backslashreplace").decode()


def select_shard(paths: list[Path], shard: str | None) -> list[Path]:
    """The slides of a shard `"I/N"`, or all."""
    if shard is None:
        return paths
    index, count = map(int, shard.split("/"))
    return paths[index::count]


def list_slides(names: Sequence[str | Path], inputs: InputKind = SLIDES) -> list[Path]:
    """List the slides among files and folders, by name.

    Tables of slides, `*.csv`, stand for their slides. Subfolders of a folder without slides are searched too; masks
    beside the slides of a folder are left out.

    Raises:
        SourceError: A folder holds no slides, a table lacks `slide_id`, or two slides have the same name.
    """
    paths: list[Path] = []
    title = inputs.title
    for path in map(Path, names):
        if cohort.is_table(path):
            paths += [row["path"] for row in cohort.slides_of_table(path)]
            continue
        is_folder = path.is_dir() and path.suffix.lower() != ".zarr"
        files = inputs.listed(path) if is_folder else [path]
        if not files:
            raise SourceError(
                f"{path}: holds no {inputs.name} ({', '.join(sorted(inputs.suffixes))}). Check the path."
            )
        if is_folder and (passed := slide_folders.passed_over(path, files)):
            print(f"{path}: passed over {passed}")
        images = slide_folders.without_masks(files, title)
        if len(images) < len(files):
            mask = next(file for file in files if file not in images)
            print(f"{path}: masks are left out, such as {mask.name}")
        paths += images
    by_name: dict[str, Path] = {}
    for path in dict.fromkeys(paths):
        other = by_name.setdefault(title(path), path)
        if other != path:
            raise SourceError(
                f"{path} and {other}: results of both would be written to '{title(path)}'. Rename one, or use two "
                "--out folders."
            )
    return list(by_name.values())


def write_view(
    settings: BatchSettings,
    path: Path,
    slide: Slide,
    overlays: Sequence[slide_viewer.Overlay],
    title: str | None = None,
) -> None:
    """Write a slide with overlays for the zoomable view of the report; its title is the file name by default."""
    title = title or path.name
    slide_viewer.write_slide_view(settings.out, title_of(path), slide, overlays, title=title)


def _sizes(table: str, paths: Sequence[Path]) -> dict[Path, float]:
    """Read the size of pixels by path, and say which rows of `--mpp-of` match no slide."""
    slides = Names((os.path.abspath(path), path) for path in paths)
    return side_tables.assigned(table, sources.read_mpp_table(table), slides)


def write_outlines(
    settings: TileSettings | PredictSettings,
    path: Path,
    slide: Slide,
    features: Iterable[Mapping[str, Any]],
) -> int:
    """Write GeoJSON features, in pixels of level 0, as `SLIDE.geojson`, and return their number.

    They are counted from where `--outline-origin` says.
    """
    file = output_folder.file_in(Path(settings.out), f"{title_of(path)}.geojson")
    row, column = slide.origin
    if not (row or column):
        return geojson.write_geojson(file, features)
    if settings.outline_origin == LEVEL_0:
        return geojson.write_geojson(file, features, counted_from=LEVEL_0)
    count = geojson.write_geojson(file, features, slide.origin, SCANNED)
    _print(
        f"{path.name}: its outlines are counted from the scanned area, x {column} and y {row} of level 0, as in QuPath",
        sys.stdout,
        settings.quiet or not sys.stderr.isatty(),
    )
    return count


def _claim_folder(folder: Path, name: str, settings: BatchSettings, paths: Sequence[Path]) -> None:
    """Create the folder, or check that it holds results of the same settings.

    If all slides of `paths` have failed, the settings of the folder are replaced.
    """
    if folder.exists() and not folder.is_dir():
        raise SourceError(f"{folder}: is a file; expected a folder. Check --out.")
    output_folder.claim(folder, paths)
    again = _all_failed(folder, paths)
    current, file = deciding(settings), folder / f"{name}.yaml"
    if again or not file.exists():
        with run_folder.folder_lock(folder):  # several shards may start at once
            if again or not file.exists():
                run_folder.write_yaml(file, current)
                run_folder.write_versions(folder)
    saved = with_current_names(read_yaml(file), type(settings))
    changed = [key for key in current if saved.get(key) != current[key]]
    if changed:
        raise SourceError(
            f"{folder}: holds results of other settings: {', '.join(changed)}. Use another --out, or the "
            f"settings in {file}."
        )


def _all_failed(folder: Path, paths: Sequence[Path]) -> bool:
    """Tell whether the folder says of every slide that it failed, and holds no result of another."""
    has_results = any(any(folder.glob(name)) for name in _RESULTS)
    return not has_results and {*map(_printable, paths)} <= run_folder.failures(folder)


def _drop_old_failures(folder: Path, work: Work[Any], paths: Sequence[Path]) -> None:
    """Remove failures of slides that are done or gone by now, or that this command reads by another path."""
    current, title = {_printable(path): path for path in paths}, work.inputs.title
    titles = {*map(title, paths)}
    for item in run_folder.failures(folder):
        if item in current:
            outdated = work.finished(current[item])
        else:
            outdated = title(Path(item)) in titles or not Path(item).exists()
        if outdated:
            run_folder.save_failure(folder, item, None)


def _print(line: str, stream: TextIO, quiet: bool) -> None:
    if quiet:
        print(line, file=stream, flush=True)
    else:
        tqdm.write(line, file=stream)


def _finish(work: Work[Any], count: int, failed: int, changed: bool) -> int:
    """Write the report, and return the exit code."""
    folder, dry_run = Path(work.settings.out), work.settings.dry_run
    page = folder / report.NAME
    if not dry_run and (changed or not page.exists()):
        with run_folder.folder_lock(folder):  # several shards may end at once
            print(f"report: {report.write_report(folder, used=training.in_use)}")
    if not failed:
        return 0
    where = "" if dry_run else f", see {folder / run_folder.FAILED}"
    print(f"{failed} of {count} {work.inputs.name} failed{where}", file=sys.stderr)
    return 3
