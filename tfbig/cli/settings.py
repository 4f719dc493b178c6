"""Command line of `train.py`: flags, `--config` files, and the settings of a run that is resumed."""

import argparse
import sys
from pathlib import Path

import yaml

from tfbig import SourceError
from tfbig.cli import machine
from tfbig.results import report, run_folder
from tfbig.system import unified_memory

_GROUPS = ("data", "training", "machine", "run")
_PATHS = (
    *("data", "slides", "coords", "splits", "mpp_of", "encoder_weights", "backbone", "test_only"),
)
_NOT_SAVED = ("config", "resume", "dry_run", "quiet", "beside", "told")
_PLACES = (
    *_PATHS,
    *("out", "scratch", "devices", "device_memory", "host_memory", "disk", "oversubscription"),
    *("strict", "confine", "custom", "tensorboard", "checkpoint_minutes", "instances_at_once"),
)
"""What says where and within what a run is made, not what it learns."""
_ON_RESUME = (
    *_PLACES,
    *("epochs", "lr", "batch_size", "accumulate", "strategy", "sync_norm", "deterministic"),
)
"""What a run may have otherwise when it goes on."""
_EXACT = {"device", "unified", "offload"}
"""Modes that give the same, one of which may follow another."""
_SIDE_BY_SIDE = (
    *("mode", "loss", "val_loss", "seconds_per_step"),
    *("planned_bytes", "peak_bytes", "device_peak_bytes"),
)


def parse(argv, tasks, prog="train.py"):
    """Settings from flags, over `--config`, over those of the resumed run, over the defaults.

    Args:
        argv: The command line.
        tasks: `{name: module}`, see `tfbig.cli.tasks`; the first is the default.
        prog: What help and errors call the program.
    """
    argv = [_dashed(token) for token in argv]
    first, _ = _first_parser(tasks).parse_known_args(argv)
    if first.resume and first.out is None:
        _parser(tasks, first.task, prog).error(
            "--resume continues a run: say which with --out FOLDER"
        )
    folder = Path(first.out or "")
    goes_on = first.resume and (folder / run_folder.CONFIG).exists()
    before = _kept(folder) if goes_on else []
    tokens = [*before, *(_read(first.config) if first.config else []), *argv]
    if goes_on:
        _check_task(
            folder, *(_first_parser(tasks).parse_known_args(t)[0] for t in (before, tokens))
        )
    found = _parsed(tasks, tokens, prog)
    found.told = []
    if goes_on:
        found.told = _changed(_parsed(tasks, before, prog), found, folder)
    elif first.resume:
        found.told = [_begin(argv, first.out)]
    return found


def _kept(folder):
    """The settings of a run as tokens."""
    found = _read(folder / run_folder.CONFIG)
    if not found:
        _stop(
            f"{folder / run_folder.CONFIG}: is empty; expected the settings of the run. Put it back, or start again."
        )
    return found


def _check_task(folder, before, now):
    if before.task != now.task:
        _stop(f"{folder}: is a run of --task {before.task}, not {now.task}. Check --out.")


def _parsed(tasks, tokens, prog):
    """Settings from tokens of a command line, those of files among them."""
    first, _ = _first_parser(tasks).parse_known_args(tokens)
    found = _parser(tasks, first.task, prog).parse_args(tokens)
    for value in vars(found).values():
        if isinstance(value, list):
            value[:] = [v[1:] if str(v).startswith(" -") else v for v in value]
    return found


def _changed(before, now, folder):
    """A line that says which settings of a run are others when it goes on; exits where it would be another run."""
    old, new = to_save(before), to_save(now)
    names = [name for name in new if old.get(name) != new[name]]
    told = {name: f"{name} {old.get(name)} -> {new[name]}" for name in names if name != "out"}
    alike = {old["mode"], new["mode"]} <= _EXACT
    other = [told[n] for n in told if n not in _ON_RESUME and not (n == "mode" and alike)]
    if other:
        _stop(
            f"--resume goes on as the run in {folder} began, but {'; '.join(other)}. Leave these flags out, or give "
            "another --out."
        )
    return [f"goes on with {'; '.join(told.values())}"] if told else []


def learned(settings):
    """What decides what is learned, which workers must have alike."""
    return {k: v for k, v in vars(settings).items() if k not in (*_PLACES, *_NOT_SAVED)}


def _begin(argv, folder):
    """With --resume a run may be begun, if flags say which: so a scheduler starts it and starts it again alike."""
    flags = {token.partition("=")[0] for token in argv if token.startswith("--")}
    if not flags - {"--resume", "--out", "--epochs", "--quiet"}:
        _stop(f"{folder}: holds no run to resume. Check --out, or give the flags of a new run.")
    return f"{folder}: holds no run yet; it begins"


def prepare(settings):
    """What has to be known or set before anything uses a device.

    Raises:
        SourceError: the run of `--beside` has not ended, or there is no such device.
        UnifiedMemoryError: `--mode unified` cannot be had.
    """
    if settings.beside and not (Path(settings.beside) / run_folder.METRICS).exists():
        raise SourceError(
            f"--beside {settings.beside}: has no {run_folder.METRICS}; expected the folder of a run that has ended."
        )
    machine.prepare(settings)
    settings.told += machine.replicas()


def write_metrics(folder, settings, metrics):
    """Writes what was measured, beside that of another run where one was named."""
    device = unified_memory.peak_bytes()
    metrics = metrics if device is None else metrics | {"device_peak_bytes": device}
    if settings.beside:
        other = run_folder.read_json(Path(settings.beside) / run_folder.METRICS)
        beside = {key: other[key] for key in _SIDE_BY_SIDE if key in other}
        if "loss" in metrics and "loss" in other:
            beside["loss_difference"] = abs(metrics["loss"] - other["loss"])
        metrics = metrics | {"beside": {"run": str(Path(settings.beside).resolve()), **beside}}
    run_folder.write_json(folder / run_folder.METRICS, metrics)


def tell_results(numbers, folder):
    """Writes the report of a run that has ended, and says where it is."""
    page = report.write_report(folder)
    text = "  ".join(f"{key} {value:.4f}" for key, value in numbers.items())
    print(f"{text}\nrun folder: {folder}\nreport: {page}")


def to_save(settings):
    """What `config.yaml` of the run holds; paths hold from wherever it is read."""
    values = {key: value for key, value in vars(settings).items() if key not in _NOT_SAVED}
    return {
        key: str(Path(value).resolve()) if key in _PATHS and value else value
        for key, value in values.items()
    }


def count(text):
    """A flag that counts something."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"'{text}' must be at least 1")
    return number


def natural(text):
    """A flag's number, 0 or more."""
    return 0 if text == "0" else count(text)


def positive(text):
    """A flag that is a number above 0."""
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"'{text}' must be a positive number")
    return number


def _first_parser(tasks):
    """What decides which other flags there are."""
    parser = argparse.ArgumentParser(prog="train.py", add_help=False, allow_abbrev=False)
    _add_task(parser.add_argument, tasks)
    _add_run(parser.add_argument)
    return parser


def _parser(tasks, name, prog):
    task = tasks[name]
    command = f"python {prog}" if prog.endswith(".py") else prog
    parser = argparse.ArgumentParser(
        prog=prog,
        description=task.__doc__.partition("\n")[0],
        epilog=f"Example: {command} {task.EXAMPLE}. With --task NAME --help: the flags of another task.",
        allow_abbrev=False,
    )
    groups = {title: parser.add_argument_group(title).add_argument for title in _GROUPS}
    _add_task(groups["data"], tasks)
    modes = "; ".join(f"{mode}: {what}" for mode, what in task.MODES.items())
    groups["data"](
        "--mode",
        choices=list(task.MODES),
        default=next(iter(task.MODES)),
        help=f"{modes} (default: %(default)s)",
    )
    task.add_flags(groups["data"], groups["training"])
    groups["training"](
        "--seed", type=int, default=0, help="of weights and data (default: %(default)s)"
    )
    machine.add_flags(groups["machine"])
    _add_run(groups["run"])
    return parser


def _add_task(add, tasks):
    add(
        "--task",
        choices=list(tasks),
        default=next(iter(tasks)),
        help="what is trained (default: %(default)s)",
    )


def _add_run(add):
    add(
        "--out",
        metavar="FOLDER",
        help="run folder for model, history, metrics, plan and pictures "
        "(default: runs/<task>-<mode>-<date>-<time>)",
    )
    add(
        "--resume",
        action="store_true",
        help="continue the run in --out from its last checkpoint, with its settings, as if it had not ended (give "
        "--epochs to train longer); if there is none, begin it",
    )
    add(
        "--checkpoint-minutes",
        type=positive,
        default=10.0,
        metavar="MINUTES",
        help="between checkpoints within an epoch; one follows every epoch, Ctrl-C, SIGTERM and every error "
        "(default: %(default)s)",
    )
    add_config(add)
    add(
        "--beside",
        metavar="RUN",
        help="run folder of another mode on the same data: its loss, time and memory stand beside those of this one "
        "in metrics.json and the report",
    )
    add("--dry-run", action="store_true", help="print the plan and stop; nothing is written")
    add("--quiet", action="store_true", help="no progress bars")
    add(
        "--strict",
        action="store_true",
        help="what cannot be read ends the run; else it is left out, named in failed.csv, and the exit code is 3",
    )
    add(
        "--tensorboard",
        action="store_true",
        help="write the history for TensorBoard into the run folder; needs pip install 'tfbig[log]'",
    )


def add_config(add):
    """The flag that names a file of flags."""
    add(
        "--config",
        metavar="FILE",
        help="YAML file of flags (device_memory: 512MB), such as config.yaml of a run; flags given "
        "beside it win",
    )


def with_config(argv):
    """A command line `COMMAND FLAGS` with the flags of its `--config` file before its own."""
    argv = [_dashed(token) for token in argv]
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_config(parser.add_argument)
    known, rest = parser.parse_known_args(argv)
    if known.config is None or not rest:
        return argv
    return [rest[0], *_read(known.config), *rest[1:]]


def _stop(message):
    argparse.ArgumentParser(prog=Path(sys.argv[0]).name).error(message)


def _dashed(token):
    """`--batch_size=4` as `--batch-size=4`."""
    name, equals, value = token.partition("=")
    return name.replace("_", "-") + equals + value if token.startswith("--") else token


def _read(file):
    """A YAML file as tokens of the command line, so that they are checked alike."""
    values = read_yaml(file)
    return tokens_of(values, file)


def tokens_of(values, file):
    """Settings of a file as tokens of the command line."""
    for name in values:
        if str(name).replace("-", "_") in _NOT_SAVED:
            _stop(f"{file}: '{name}' can be given on the command line only")
    return [token for name, value in values.items() for token in _tokens(name, value)]


def read_yaml(file):
    """The `flag: value` lines of a YAML file."""
    try:
        values = yaml.safe_load(Path(file).read_text(encoding="utf-8")) or {}
    except FileNotFoundError:
        _stop(f"{file}: there is no such file; expected a YAML file of flags")
    except (yaml.YAMLError, ValueError) as error:  # ValueError: no text, or a date that is none
        _stop(f"{file}: is not YAML: {' '.join(str(error).split())}")
    if not isinstance(values, dict):
        _stop(f"{file}: holds no `flag: value` lines; expected e.g. `epochs: 6`")
    return values


def _tokens(name, value):
    """A line of a YAML file as tokens: `True` is a flag alone, a list its values."""
    if value is None or value is False:
        return []
    flag = _dashed(f"--{name}")
    if isinstance(value, list):  # what begins with "-" would be a flag
        return [flag, *(f" {v}" if str(v).startswith("-") else str(v) for v in value)]
    return [flag] if value is True else [f"{flag}={value}"]
