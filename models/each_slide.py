"""A command over many slides: one bad slide never ends a run, and what is finished is not done again."""

import sys
import time
from pathlib import Path

import tensorflow as tf
from tqdm import tqdm

from models import settings as command_line
from tfbig import (
    SourceError,
    Stopped,
    TfbigError,
    progress,
    report,
    runfolder,
    sources,
    stopping,
    zoom,
)
from tfbig.sources.slide import title_of


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


def run(settings, work, finished):
    """Does `work(path, slide)` for every slide that is not finished; gives the exit code.

    A slide that fails is named on standard error and in `failed.csv`, which is there only if some did.

    Args:
        settings: of the command.
        work: gives a line for people.
        finished: from a path to whether it was done before.
    """
    paths = found(settings.slides)
    sizes = sources.read_mpp_table(settings.mpp_of) if settings.mpp_of else {}
    folder = Path(settings.out)
    if not settings.dry_run:
        _claim(folder, settings)
    failed = []
    waiting = [path for path in paths if settings.dry_run or not finished(path)]
    if len(waiting) < len(paths):
        print(f"{len(paths) - len(waiting)} of {len(paths)} slides are finished")
    quiet = settings.quiet or not sys.stderr.isatty()
    progress.show(False if settings.quiet else None)
    for path in tqdm(waiting, unit="slide", disable=quiet):
        stopping.check()
        began = time.monotonic()
        try:
            slide = sources.open_slide(path, mpp=_mpp(path, sizes), reader=settings.reader)
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
            failed.append({"slide": str(path), "reason": reason})
            _tell(f"failed: {path}: {reason}", sys.stderr, quiet)
            if not settings.dry_run:
                runfolder.write_csv(folder / runfolder.FAILED, failed)
        else:
            _tell(f"{line} ({time.monotonic() - began:.1f} s)", sys.stdout, quiet)
    return _ended(folder, paths, failed, settings, changed=bool(waiting))


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
    picture = slide.thumbnail(zoom.MAX_SIDE)
    mpp = slide.mpp and slide.mpp[1] * slide.shape[1] / picture.shape[1]
    zoom.write_view(settings.out, title_of(path), picture, overlays, title=path.name, mpp=mpp)


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
    runfolder.write_yaml(file, own)
    runfolder.write_versions(folder)


def _tell(line, stream, quiet):
    if quiet:
        print(line, file=stream, flush=True)
    else:
        tqdm.write(line, file=stream)


def _ended(folder, paths, failed, settings, changed):
    if not settings.dry_run:
        if not failed:
            (folder / runfolder.FAILED).unlink(missing_ok=True)
        page = folder / report.NAME
        if changed or not page.exists():
            print(f"report: {report.write_report(folder)}")
    if not failed:
        return 0
    where = "" if settings.dry_run else f", see {folder / runfolder.FAILED}"
    print(f"{len(failed)} of {len(paths)} slides failed{where}", file=sys.stderr)
    return 3
