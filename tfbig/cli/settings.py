"""Flags of `train.py`, `--config` files, and the settings of a resumed run."""

import argparse
import sys
from pathlib import Path

import yaml

from tfbig import SourceError
from tfbig.cli import machine, paths
from tfbig.results import report, run_folder
from tfbig.system import unified_memory

_GROUPS = ("data", "training", "machine", "run")
_PATHS = (
    *("data", "slides", "coords", "splits", "mpp_of", "encoder_weights", "backbone", "test_only"),
)
_NOT_SAVED = ("config", "resume", "dry_run", "quiet", "beside", "notices")
_PLACES = (
    *_PATHS,
    *("out", "scratch", "devices", "device_memory", "host_memory", "disk", "oversubscription"),
    *("strict", "confine", "custom", "tensorboard", "checkpoint_minutes", "instances_at_once"),
)
"""Settings that say where a run is made and with what resources, not what it learns."""
_CHANGEABLE = (
    *_PLACES,
    *("epochs", "lr", "batch_size", "accumulate", "strategy", "sync_norm", "deterministic"),
)
"""Settings that may change when a run is resumed."""
_EXACT_MODES = {"device", "unified", "offload"}
"""Modes with the same results; a run may change from one to another."""
_COMPARED = (
    *("mode", "loss", "val_loss", "seconds_per_step"),
    *("planned_bytes", "peak_bytes", "device_peak_bytes"),
)


def parse(argv, tasks, prog="train.py"):
    """Return the settings: flags win over `--config`, that over the resumed run, that over the defaults.

    Args:
        argv: The command line.
        tasks: `{name: module}`, see `tfbig.cli.tasks`; the first is the default.
        prog: Name of the program in help and errors.
    """
    argv = [_with_dashes(token) for token in argv]
    first, _ = _first_parser(tasks).parse_known_args(argv)
    if first.resume and first.out is None:
        _parser(tasks, first.task, prog).error(
            "--resume continues a run: name its folder with --out FOLDER"
        )
    folder = Path(first.out or "")
    resumed = first.resume and (folder / run_folder.CONFIG).exists()
    saved = _saved_tokens(folder) if resumed else []
    tokens = [*saved, *(_read_tokens(first.config) if first.config else []), *argv]
    if resumed:
        _check_task(
            folder, *(_first_parser(tasks).parse_known_args(part)[0] for part in (saved, tokens))
        )
    settings = _parsed(tasks, tokens, prog)
    settings.notices = []
    if resumed:
        settings.notices = _check_changes(_parsed(tasks, saved, prog), settings, folder)
    elif first.resume:
        settings.notices = [_check_new_run(argv, first.out)]
    return settings


def _saved_tokens(folder):
    """Return the settings of a run as tokens of the command line."""
    tokens = _read_tokens(folder / run_folder.CONFIG)
    if not tokens:
        _exit(
            f"{folder / run_folder.CONFIG}: is empty; expected the settings of the run. Put it back, or start a new "
            "run."
        )
    return tokens


def _check_task(folder, saved, requested):
    if saved.task != requested.task:
        _exit(f"{folder}: is a run of --task {saved.task}, not {requested.task}. Check --out.")


def _parsed(tasks, tokens, prog):
    """Parse tokens that come from files and from the command line."""
    first, _ = _first_parser(tasks).parse_known_args(tokens)
    settings = _parser(tasks, first.task, prog).parse_args(tokens)
    for value in vars(settings).values():
        if isinstance(value, list):
            value[:] = [v[1:] if str(v).startswith(" -") else v for v in value]
    return settings


def _check_changes(saved, requested, folder):
    """Return a line that names the changed settings; exit if they would make it another run."""
    old, new = to_save(saved), to_save(requested)
    names = [name for name in new if old.get(name) != new[name]]
    changes = {name: f"{name} {old.get(name)} -> {new[name]}" for name in names if name != "out"}
    both_exact = {old["mode"], new["mode"]} <= _EXACT_MODES
    refused = [
        changes[n] for n in changes if n not in _CHANGEABLE and not (n == "mode" and both_exact)
    ]
    if refused:
        _exit(
            f"--resume continues the run in {folder} with its own settings, but these differ: {'; '.join(refused)}. "
            "Leave the flags out, or use another --out."
        )
    return [f"continues with {'; '.join(changes.values())}"] if changes else []


def training_settings(settings):
    """Return the settings that decide the result of training; all workers must have the same."""
    return {k: v for k, v in vars(settings).items() if k not in (*_PLACES, *_NOT_SAVED)}


def _check_new_run(argv, folder):
    """Exit if the flags are too few to start a run; else return a line that it starts.

    `--resume` without a run starts one, so that a scheduler can use one command for the first start and for restarts.
    """
    flags = {token.partition("=")[0] for token in argv if token.startswith("--")}
    if not flags - {"--resume", "--out", "--epochs", "--quiet"}:
        _exit(f"{folder}: holds no run to resume. Check --out, or add the flags of a new run.")
    return f"{folder}: holds no run yet; starting it"


def prepare(settings):
    """Check and set what must be known before a device is used.

    Args:
        settings: Settings of the run.

    Raises:
        FileExistsError: `--out` holds a run, and neither `--resume` nor `--dry-run` is set.
        FlagError: A path does not exist, or is of the wrong kind.
        SourceError: The run of `--beside` has not ended, or a device of `--devices` does not exist.
        UnifiedMemoryError: `--mode unified` is not available.
    """
    if settings.out and not settings.resume and not settings.dry_run:
        run_folder.check_new(settings.out)
    paths.check(settings)
    if settings.beside and not (Path(settings.beside) / run_folder.METRICS).exists():
        raise SourceError(
            f"--beside {settings.beside}: has no {run_folder.METRICS}; expected the folder of a finished run."
        )
    machine.prepare(settings)
    settings.notices += machine.replica_notice()


def write_metrics(folder, settings, metrics):
    """Write the metrics, with those of the run that `--beside` names."""
    device = unified_memory.peak_bytes()
    metrics = metrics if device is None else metrics | {"device_peak_bytes": device}
    if settings.beside:
        other = run_folder.read_json(Path(settings.beside) / run_folder.METRICS)
        compared = {key: other[key] for key in _COMPARED if key in other}
        if "loss" in metrics and "loss" in other:
            compared["loss_difference"] = abs(metrics["loss"] - other["loss"])
        metrics = metrics | {"beside": {"run": str(Path(settings.beside).resolve()), **compared}}
    run_folder.write_json(folder / run_folder.METRICS, metrics)


def print_results(numbers, folder):
    """Write the report of a finished run, and print the results and the path."""
    page = report.write_report(folder)
    text = "  ".join(f"{key} {value:.4f}" for key, value in numbers.items())
    print(f"{text}\nrun folder: {folder}\nreport: {page}")


def to_save(settings):
    """Return what `config.yaml` of the run holds, with absolute paths."""
    values = {key: value for key, value in vars(settings).items() if key not in _NOT_SAVED}
    return {
        key: str(Path(value).resolve()) if key in _PATHS and value else value
        for key, value in values.items()
    }


def count(text):
    """Parse a flag that is a whole number, 1 or more."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"'{text}' must be at least 1")
    return number


def count_from_zero(text):
    """Parse a flag that is a whole number, 0 or more."""
    return 0 if text == "0" else count(text)


def positive(text):
    """Parse a flag that is a number above 0."""
    number = float(text)
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"'{text}' must be a positive number")
    return number


def share(text):
    """Parse a flag that is a share, 0 to 1."""
    number = float(text)
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"'{text}' must be a share from 0 to 1")
    return number


def _first_parser(tasks):
    """Return the parser of the flags that decide which other flags exist."""
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
        epilog=f"Example: {command} {task.EXAMPLE}. For the flags of another task: --task NAME --help.",
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
        "--seed", type=int, default=0, help="random seed of weights and data (default: %(default)s)"
    )
    machine.add_flags(groups["machine"])
    _add_run(groups["run"])
    return parser


def _add_task(add, tasks):
    add(
        "--task",
        choices=list(tasks),
        default=next(iter(tasks)),
        help="what to train (default: %(default)s)",
    )


def _add_run(add):
    add(
        "--out",
        metavar="FOLDER",
        help="run folder for the model, history, metrics, plan and figures "
        "(default: runs/<task>-<mode>-<date>-<time>)",
    )
    add(
        "--resume",
        action="store_true",
        help="continue the run in --out from its last checkpoint, with its settings, as if it had not been interrupted "
        "(--epochs trains longer); if the folder holds no run, start one",
    )
    add(
        "--checkpoint-minutes",
        type=positive,
        default=10.0,
        metavar="MINUTES",
        help="minutes between checkpoints within an epoch; one is also written after every epoch, Ctrl-C, SIGTERM "
        "and error (default: %(default)s)",
    )
    add_config(add)
    add(
        "--beside",
        metavar="RUN",
        help="run folder of another mode on the same data, to compare with: its loss, time and memory are added to "
        "metrics.json and the report",
    )
    add("--dry-run", action="store_true", help="print the plan and stop; nothing is written")
    add("--quiet", action="store_true", help="no progress bars")
    add(
        "--strict",
        action="store_true",
        help="stop if a file cannot be read; without it, the file is skipped, listed in failed.csv, and the exit "
        "code is 3",
    )
    add(
        "--tensorboard",
        action="store_true",
        help="write the history for TensorBoard into the run folder (pip install 'tfbig[log]')",
    )


def add_config(add):
    """Add the flag `--config`."""
    add(
        "--config",
        metavar="FILE",
        help="YAML file of flags (device_memory: 512MB), such as config.yaml of a run; flags on the command line win",
    )


def with_config(argv):
    """Insert the flags of the `--config` file into a command line `COMMAND FLAGS`."""
    argv = [_with_dashes(token) for token in argv]
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    add_config(parser.add_argument)
    config_flag, rest = parser.parse_known_args(argv)
    if config_flag.config is None or not rest:
        return argv
    return [rest[0], *_read_tokens(config_flag.config), *rest[1:]]


def _exit(message):
    argparse.ArgumentParser(prog=Path(sys.argv[0]).name).error(message)


def _with_dashes(token):
    """Return `--batch_size=4` as `--batch-size=4`."""
    name, equals, value = token.partition("=")
    return name.replace("_", "-") + equals + value if token.startswith("--") else token


def _read_tokens(file):
    """Read a YAML file as tokens of the command line, so that they are checked like flags."""
    values = read_yaml(file)
    return tokens_of(values, file)


def tokens_of(values, file):
    """Return the settings of a file as tokens of the command line."""
    for name in values:
        if str(name).replace("-", "_") in _NOT_SAVED:
            _exit(f"{file}: '{name}' can be given on the command line only")
    return [token for name, value in values.items() for token in _tokens(name, value)]


def read_yaml(file):
    """Read the `flag: value` lines of a YAML file."""
    try:
        values = yaml.safe_load(Path(file).read_text(encoding="utf-8")) or {}
    except FileNotFoundError:
        _exit(f"{file}: no such file; expected a YAML file of flags")
    except OSError as error:
        _exit(f"{file}: cannot be read: {error.strerror}; expected a YAML file of flags")
    except (yaml.YAMLError, ValueError) as error:  # ValueError: not UTF-8, or an impossible date
        _exit(f"{file}: is not YAML: {' '.join(str(error).split())}")
    if not isinstance(values, dict):
        _exit(f"{file}: holds no `flag: value` lines; expected e.g. `epochs: 6`")
    return values


def _tokens(name, value):
    """Return a line of a YAML file as tokens: `True` is a flag alone, a list its values."""
    if value is None or value is False:
        return []
    flag = _with_dashes(f"--{name}")
    if isinstance(value, list):  # else a value that begins with "-" would be a flag
        return [flag, *(f" {v}" if str(v).startswith("-") else str(v) for v in value)]
    return [flag] if value is True else [f"{flag}={value}"]
