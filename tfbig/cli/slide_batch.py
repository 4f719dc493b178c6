"""A command over many slides: one bad slide never ends a run, and what is finished is not done again."""

import argparse
import sys
import time
from pathlib import Path

import tensorflow as tf
from tqdm import tqdm

from tfbig import SourceError, Stopped, TfbigError, sources
from tfbig.cli import dask
from tfbig.cli import settings as command_line
from tfbig.results import report, run_folder, slide_viewer
from tfbig.sources.slides.slide import title_of
from tfbig.system import progress, signals


def add_flags(add):
    """Flags of every command over slides."""
    add("slides", nargs="+", metavar="SLIDE", help="files, or folders of them")
    add("--out", required=True, metavar="DIR", help="folder for the results")
    add(
        "--mpp-of",
        metavar="FILE",
        help="CSV with columns wsi,mpp: file names of slides that do not say how large their pixels are, and "
        "micrometres per pixel at level 0",
    )
    add("--reader", choices=["tifffile", "openslide", "zarr"], help="(default: by the format)")
    add(
        "--shard",
        type=_shard,
        metavar="I/N",
        help="only every N-th slide, from the I-th on (0 to N - 1), e.g. for job arrays: "
        "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT; shards share --out",
    )
    add(
        "--dask",
        metavar="ADDRESS",
        help="slides are tasks of the Dask cluster with this scheduler, or 'local' for the cores of this machine; "
        "needs pip install 'tfbig[dask]'",
    )
    add("--strict", action="store_true", help="stop at the first slide that fails")
    add("--quiet", action="store_true", help="no progress bars")
    add("--dry-run", action="store_true", help="say what would be done; nothing is written")
    command_line.add_config(add)


def add_resolution(add, of, default):
    """Flags of the resolution at which slides are seen."""
    add("--mpp", type=command_line.positive, help=f"of {of}, micrometres per pixel")
    add("--magnification", type=command_line.positive, help=f"of {of} instead, e.g. 20")
    add("--level", type=command_line.natural, help=f"of the pyramid instead (default: {default})")


def settle_resolution(settings, **default):
    """Sets the default where none is given.

    Raises:
        SourceError: several are given.
    """
    given = [value for value in resolution(settings).values() if value is not None]
    if len(given) > 1:
        raise SourceError(
            "slides are seen at one resolution: give one of --mpp, --magnification, --level."
        )
    if not given:
        vars(settings).update(default)


def resolution(settings):
    """Arguments of `Slide.at`."""
    return {key: getattr(settings, key) for key in ("mpp", "magnification", "level")}


def run(settings, make):
    """Does the work of a command for every slide that is not finished; gives the exit code.

    A slide that fails is named on standard error and in `failed.csv`, which is there only if some did.

    Args:
        settings: of the command.
        make: from settings to `(work, finished)`: `work(path, slide)` gives a line for people, `finished(path)` says
            whether a slide was done before.
    """
    work, finished = make(settings)
    every = found(settings.slides)
    paths = of_shard(every, settings.shard)
    sizes = sources.read_mpp_table(settings.mpp_of) if settings.mpp_of else {}
    folder = Path(settings.out)
    if not settings.dry_run:
        _claim(folder, settings)
        _forget(folder, every)
    failed = 0
    waiting = [path for path in paths if settings.dry_run or not finished(path)]
    if len(waiting) < len(paths):
        print(f"{len(paths) - len(waiting)} of {len(paths)} slides are finished")
    quiet = settings.quiet or not sys.stderr.isatty()
    progress.show(False if settings.quiet else None)
    tasks = [(path, _mpp(path, sizes)) for path in waiting]
    ended = (
        dask.each(settings, make, one, tasks) if settings.dask else _in_turn(settings, work, tasks)
    )
    for path, line, reason, seconds in tqdm(ended, total=len(tasks), unit="slide", disable=quiet):
        if reason is not None:
            failed += 1
            _tell(f"failed: {_named(path)}: {reason}", sys.stderr, quiet)
        else:
            _tell(f"{line} ({seconds:.1f} s)", sys.stdout, quiet)
        if not settings.dry_run:
            row = None if reason is None else {"slide": _named(path), "reason": reason}
            run_folder.replace_row(folder / run_folder.FAILED, "slide", _named(path), row)
    return _ended(folder, paths, failed, settings, changed=bool(waiting))


def _in_turn(settings, work, tasks):
    """Slide after slide: `(path, line, reason, seconds)`, the reason where it failed."""
    for path, mpp in tasks:
        signals.check()
        yield path, *one(settings, work, path, mpp)


def one(settings, work, path, mpp):
    """The work on a slide: `(line, None, seconds)`, or `(None, reason, seconds)` where it failed."""
    began = time.monotonic()
    try:
        _check_name(path)
        slide = sources.open_slide(path, mpp=mpp, reader=settings.reader)
        try:
            line = work(path, slide)
        finally:
            slide.close()
    except Stopped:
        raise
    except (TfbigError, OSError, ValueError, MemoryError, tf.errors.OpError) as error:
        if settings.strict:
            raise
        reason = " ".join(str(error).split()).removeprefix(f"{path}: ")
        return None, reason, time.monotonic() - began
    return line, None, time.monotonic() - began


def _check_name(path):
    try:
        str(path).encode()
    except UnicodeEncodeError as error:
        raise SourceError(
            "its name is not UTF-8, as results and reports are. Rename it."
        ) from error


def _named(path):
    """The path as text that every file can hold."""
    return str(path).encode(errors="backslashreplace").decode()


def of_shard(paths, shard):
    """The slides of a shard `"I/N"`, or all."""
    if shard is None:
        return paths
    index, count = map(int, shard.split("/"))
    return paths[index::count]


def found(given):
    """The slides among files and folders, by name.

    Raises:
        SourceError: a folder holds none, or two slides would have results of one name.
    """
    paths = []
    for path in map(Path, given):
        inside = path.is_dir() and path.suffix.lower() != ".zarr"
        own = [path]
        if inside:
            own = sorted(p for p in path.iterdir() if p.suffix.lower() in sources.SLIDE_SUFFIXES)
        if not own:
            known = ", ".join(sorted(sources.SLIDE_SUFFIXES))
            raise SourceError(f"{path}: holds no slides ({known}). Check the path.")
        paths += own
    by_name = {}
    for path in dict.fromkeys(paths):
        other = by_name.setdefault(title_of(path), path)
        if other != path:
            raise SourceError(
                f"{path} and {other} would have results of one name, '{title_of(path)}'. Rename one, or give each an "
                "--out of its own."
            )
    return list(by_name.values())


def write_view(settings, path, slide, overlays):
    """A slide and what was found on it, for the zoomable view of the report."""
    picture = slide.thumbnail(slide_viewer.MAX_SIDE)
    mpp = slide.mpp and slide.mpp[1] * slide.shape[1] / picture.shape[1]
    slide_viewer.write_view(
        settings.out, title_of(path), picture, overlays, title=path.name, mpp=mpp
    )


def _mpp(path, sizes):
    return sizes.get(path.name, sizes.get(title_of(path)))


def _claim(folder, settings):
    """Makes the folder, or checks that it holds results of the same settings."""
    ignored = (
        "command",
        "slides",
        "strict",
        "quiet",
        "dry_run",
        "config",
        "out",
        "mpp_of",
        "reader",
        "shard",
        "dask",
        "device_memory",
        "host_memory",
        "disk",
        "scratch",
    )
    own = {key: value for key, value in vars(settings).items() if key not in ignored}
    file = folder / f"{settings.command}.yaml"
    if file.exists():
        before = command_line.read_yaml(file)
        other = [key for key in own if before.get(key) != own[key]]
        if other:
            raise SourceError(
                f"{folder}: holds results of other settings: {', '.join(other)}. Give another --out, or those of "
                f"{file}."
            )
        return
    if folder.exists() and not folder.is_dir():
        raise SourceError(f"{folder}: is a file; --out is the folder for the results.")
    folder.mkdir(parents=True, exist_ok=True)
    run_folder.write_yaml(file, own)
    run_folder.write_versions(folder)


def _forget(folder, paths):
    """Failures of slides that are not asked for any more."""
    known = set(map(_named, paths))
    for row in run_folder.read_rows(folder / run_folder.FAILED):
        if row["slide"] not in known:
            run_folder.replace_row(folder / run_folder.FAILED, "slide", row["slide"], None)


def _tell(line, stream, quiet):
    if quiet:
        print(line, file=stream, flush=True)
    else:
        tqdm.write(line, file=stream)


def _ended(folder, paths, failed, settings, changed):
    page = folder / report.NAME
    if not settings.dry_run and (changed or not page.exists()):
        with run_folder.alone_in(folder):  # shards end at any time
            print(f"report: {report.write_report(folder)}")
    if not failed:
        return 0
    where = "" if settings.dry_run else f", see {folder / run_folder.FAILED}"
    print(f"{failed} of {len(paths)} slides failed{where}", file=sys.stderr)
    return 3


def _shard(text):
    index, _, count = text.partition("/")
    if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
        raise argparse.ArgumentTypeError(f"'{text}' is no I/N with I from 0 to N - 1, such as 0/8")
    return text
