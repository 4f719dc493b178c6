"""A command over many slides: a bad slide does not stop the run, and finished slides are skipped."""

import argparse
import sys
import time
from pathlib import Path

import tensorflow as tf
from tqdm import tqdm

from tfbig import SourceError, Stopped, TfbigError, sources
from tfbig.cli import dask, messages
from tfbig.cli import settings as command_line
from tfbig.results import report, run_folder, slide_viewer
from tfbig.sources.slides.slide import title_of
from tfbig.system import progress, signals


def add_flags(add):
    """Add the flags of every command over slides."""
    add("slides", nargs="+", metavar="SLIDE", help="slides, or folders of slides")
    add("--out", required=True, metavar="DIR", help="folder for the results; created if needed")
    add(
        "--mpp-of",
        metavar="FILE",
        help="CSV file with columns wsi,mpp: file names of slides without a pixel size, and their micrometres per "
        "pixel at level 0",
    )
    add(
        "--slide-mpp",
        type=command_line.positive,
        metavar="MPP",
        help="micrometres per pixel at level 0 of slides whose files do not say it; --mpp-of wins for the "
        "slides that it names",
    )
    add(
        "--reader",
        choices=["tifffile", "openslide", "zarr"],
        help="library that reads the slides (default: by format)",
    )
    add(
        "--shard",
        type=_shard,
        metavar="I/N",
        help="process only every N-th slide, starting at the I-th (0 to N - 1), e.g. in job arrays: "
        "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT; all shards use the same --out",
    )
    add(
        "--dask",
        metavar="ADDRESS",
        help="process slides on the Dask cluster with this scheduler; 'local' uses the cores of this machine "
        "(pip install 'tfbig[dask]')",
    )
    add("--strict", action="store_true", help="stop at the first slide that fails")
    add("--quiet", action="store_true", help="no progress bars")
    add("--dry-run", action="store_true", help="print what would be done; write nothing")
    command_line.add_config(add)


def add_resolution(add, what, default):
    """Add the flags of the resolution at which slides are read."""
    add("--mpp", type=command_line.positive, help=f"resolution of {what} in micrometres per pixel")
    add(
        "--magnification",
        type=command_line.positive,
        help="resolution as a magnification instead, e.g. 20",
    )
    add(
        "--level",
        type=command_line.count_from_zero,
        help=f"resolution as a pyramid level instead, 0 is the finest (default: {default})",
    )


def set_resolution(settings, **default):
    """Set the default resolution where none is set.

    Args:
        settings: Settings of the command.
        **default: The setting to use, such as `mpp=0.5`.

    Raises:
        SourceError: More than one is set.
    """
    values = [value for value in resolution(settings).values() if value is not None]
    if len(values) > 1:
        raise SourceError(
            "more than one resolution; expected one of --mpp, --magnification, --level. Remove the others."
        )
    if not values:
        vars(settings).update(default)


def resolution(settings):
    """Return the arguments of `Slide.at`."""
    return {key: getattr(settings, key) for key in ("mpp", "magnification", "level")}


def run(settings, make_work):
    """Process every slide that is not finished, and return the exit code.

    A slide that fails is named on standard error and in `failed.csv`, which exists only if a slide failed.

    Args:
        settings: Settings of the command.
        make_work: Function from the settings to `(work, finished)`: `work(path, slide)` processes a slide and returns
            a line to print, `finished(path)` returns whether the slide is done.
    """
    work, finished = make_work(settings)
    all_paths = list_slides(settings.slides)
    paths = select_shard(all_paths, settings.shard)
    sizes = sources.read_mpp_table(settings.mpp_of) if settings.mpp_of else {}
    folder = Path(settings.out)
    if not settings.dry_run:
        _claim_folder(folder, settings)
        _drop_old_failures(folder, all_paths)
    failed = 0
    waiting = [path for path in paths if settings.dry_run or not finished(path)]
    if len(waiting) < len(paths):
        print(f"{len(paths) - len(waiting)} of {len(paths)} slides are already finished")
    quiet = settings.quiet or not sys.stderr.isatty()
    progress.show(False if settings.quiet else None)
    tasks = [(path, _mpp(path, sizes)) for path in waiting]
    results = (
        dask.process_slides(settings, make_work, process_slide, tasks)
        if settings.dask
        else _in_turn(settings, work, tasks)
    )
    for path, line, reason, seconds in tqdm(results, total=len(tasks), unit="slide", disable=quiet):
        if reason is not None:
            failed += 1
            _print(f"failed: {_printable(path)}: {reason}", sys.stderr, quiet)
        else:
            _print(f"{line} ({seconds:.1f} s)", sys.stdout, quiet)
        if not settings.dry_run:
            row = None if reason is None else {"slide": _printable(path), "reason": reason}
            run_folder.replace_row(folder / run_folder.FAILED, "slide", _printable(path), row)
    return _finish(folder, paths, failed, settings, changed=bool(waiting))


def _in_turn(settings, work, tasks):
    """Process slide after slide; yield `(path, line, reason, seconds)`, with a reason where it failed."""
    for path, mpp in tasks:
        signals.check()
        yield path, *process_slide(settings, work, path, mpp)


def process_slide(settings, work, path, mpp):
    """Process a slide: return `(line, None, seconds)`, or `(None, reason, seconds)` if it failed."""
    start = time.monotonic()
    try:
        _check_name(path)
        slide = open_slide(path, mpp, settings)
        try:
            line = work(path, slide)
        finally:
            slide.close()
    except Stopped:
        raise
    except (TfbigError, OSError, ValueError, MemoryError, tf.errors.OpError) as error:
        if settings.strict:
            raise
        text = messages.in_flags(error, settings.command)
        reason = " ".join(text.split()).removeprefix(f"{path}: ")
        return None, reason, time.monotonic() - start
    return line, None, time.monotonic() - start


def open_slide(path, mpp, settings):
    """Open a slide with the size of its pixels: of `--mpp-of`, else of the file, else of `--slide-mpp`.

    Args:
        path: Path of the slide.
        mpp: Micrometres per pixel in `--mpp-of`, or None.
        settings: Settings of the command.
    """
    slide = sources.open_slide(path, mpp=mpp, reader=settings.reader)
    if slide.mpp is None and settings.slide_mpp is not None:
        slide.mpp = (settings.slide_mpp, settings.slide_mpp)
    return slide


def _check_name(path):
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise SourceError("the file name is not valid UTF-8. Rename the file.") from error


def _printable(path):
    """Return the path as text that every file can hold."""
    return str(path).encode(errors="backslashreplace").decode()


def select_shard(paths, shard):
    """Return the slides of a shard `"I/N"`, or all."""
    if shard is None:
        return paths
    index, count = map(int, shard.split("/"))
    return paths[index::count]


def list_slides(names):
    """Return the slides among files and folders, by name.

    Args:
        names: Paths of slides and of folders.

    Raises:
        SourceError: A folder holds no slides, or two slides have the same name without suffix.
    """
    paths = []
    for path in map(Path, names):
        is_folder = path.is_dir() and path.suffix.lower() != ".zarr"
        files = [path]
        if is_folder:
            files = sorted(p for p in path.iterdir() if p.suffix.lower() in sources.SLIDE_SUFFIXES)
        if not files:
            suffixes = ", ".join(sorted(sources.SLIDE_SUFFIXES))
            raise SourceError(f"{path}: holds no slides ({suffixes}). Check the path.")
        paths += files
    by_name = {}
    for path in dict.fromkeys(paths):
        other = by_name.setdefault(title_of(path), path)
        if other != path:
            raise SourceError(
                f"{path} and {other}: results of both would be written to '{title_of(path)}'. Rename one, or use two "
                "--out folders."
            )
    return list(by_name.values())


def write_view(settings, path, slide, overlays):
    """Write a slide with overlays for the zoomable view of the report."""
    image = slide.thumbnail(slide_viewer.MAX_SIDE)
    mpp = slide.mpp and slide.mpp[1] * slide.shape[1] / image.shape[1]
    slide_viewer.write_view(settings.out, title_of(path), image, overlays, title=path.name, mpp=mpp)


def _mpp(path, sizes):
    return sizes.get(path.name, sizes.get(title_of(path)))


def _claim_folder(folder, settings):
    """Create the folder, or check that it holds results of the same settings."""
    ignored = (
        "command",
        "slides",
        "strict",
        "quiet",
        "dry_run",
        "config",
        "out",
        "mpp_of",
        "slide_mpp",
        "reader",
        "shard",
        "dask",
        "device_memory",
        "host_memory",
        "disk",
        "scratch",
    )
    current = {key: value for key, value in vars(settings).items() if key not in ignored}
    file = folder / f"{settings.command}.yaml"
    if file.exists():
        saved = command_line.read_yaml(file)
        changed = [key for key in current if saved.get(key) != current[key]]
        if changed:
            raise SourceError(
                f"{folder}: holds results of other settings: {', '.join(changed)}. Use another --out, or the "
                f"settings in {file}."
            )
        return
    if folder.exists() and not folder.is_dir():
        raise SourceError(f"{folder}: is a file; expected a folder. Check --out.")
    folder.mkdir(parents=True, exist_ok=True)
    run_folder.write_yaml(file, current)
    run_folder.write_versions(folder)


def _drop_old_failures(folder, paths):
    """Remove failures of slides that are not part of this command any more."""
    current = set(map(_printable, paths))
    for row in run_folder.read_rows(folder / run_folder.FAILED):
        slide = run_folder.column(folder / run_folder.FAILED, row, "slide")
        if slide not in current:
            run_folder.replace_row(folder / run_folder.FAILED, "slide", slide, None)


def _print(line, stream, quiet):
    if quiet:
        print(line, file=stream, flush=True)
    else:
        tqdm.write(line, file=stream)


def _finish(folder, paths, failed, settings, changed):
    page = folder / report.NAME
    if not settings.dry_run and (changed or not page.exists()):
        with run_folder.folder_lock(folder):  # several shards may end at once
            print(f"report: {report.write_report(folder)}")
    if not failed:
        return 0
    where = "" if settings.dry_run else f", see {folder / run_folder.FAILED}"
    print(f"{failed} of {len(paths)} slides failed{where}", file=sys.stderr)
    return 3


def _shard(text):
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise argparse.ArgumentTypeError(f"'{text}' is not I/N with I from 0 to N - 1, such as 0/8")
    return text
