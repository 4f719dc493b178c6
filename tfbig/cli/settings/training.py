"""Settings of a training run: flags win over `--config`, that over the resumed run, that over the defaults."""

from __future__ import annotations

import argparse
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tfbig.choices import CONFIG
from tfbig.cli.settings import data_kinds, parser, yaml_flags
from tfbig.cli.settings.flag import flag, flags_of, to_save
from tfbig.cli.settings.run_settings import RunSettings, task_flag
from tfbig.cli.settings.tasks import TrainSettings
from tfbig.tasks import DEFAULT, TASKS

KINDS = {"images": "images", "mil": "bags"}
"""Flag of the kind of the data, of the tasks that have one."""


@dataclass(frozen=True, kw_only=True)
class FirstSettings(RunSettings):
    """Settings that decide which other flags exist."""

    task: str = task_flag(DEFAULT)
    data: str | None = flag(help="data of the run")
    images: str | None = flag(help="kind of the images")
    bags: str | None = flag(help="kind of the bags")
    features: str | None = flag(help="folder of features")


def parse(argv: Sequence[str], prog: str = "train.py") -> TrainSettings:
    """Return the settings of a command line; exit with 2 if flags are wrong.

    Args:
        argv: The command line.
        prog: Name of the program in help and errors.
    """
    argv = [parser.with_dashes(token) for token in argv]
    first = _first(argv)
    if first.resume and first.out is None:
        _parser(first.task, prog).error(
            "--resume continues a run: name its folder with --out FOLDER"
        )
    folder = Path(first.out or "")
    saved = _saved_tokens(folder) if _resumes(first) else []
    config = yaml_flags.read_tokens(first.config, RunSettings) if first.config else []
    tokens = [*saved, *config, *argv]
    if saved:
        _check_task(folder, _first(saved), _first(tokens))
    settings = _parsed(tokens, prog)
    if saved:
        _check_changes(_parsed(saved, prog), settings, folder)
    elif first.resume:
        _check_new_run(argv, first.out)
    return settings


def resume_notices(settings: TrainSettings) -> list[str]:
    """Return a line that says how a resumed run differs from the one in its folder, if it does.

    Args:
        settings: Settings of the run, before its folder is written.
    """
    if not settings.resume:
        return []
    if not _resumes(settings):
        return [f"{settings.out}: holds no run yet; starting it"]
    changes = _changes(_parsed(_saved_tokens(Path(settings.out or "")), "train.py"), settings)
    return [f"continues with {'; '.join(changes.values())}"] if changes else []


def _resumes(settings: TrainSettings | Namespace) -> bool:
    """Return whether the settings continue a run that exists."""
    return bool(settings.resume) and (Path(settings.out or "") / CONFIG).exists()


def _saved_tokens(folder: Path) -> list[str]:
    """Return the settings of a run as tokens of the command line."""
    tokens = yaml_flags.read_tokens(folder / CONFIG, RunSettings)
    if not tokens:
        yaml_flags.exit_with(
            f"{folder / CONFIG}: is empty; expected the settings of the run. Put it back, or start a new run."
        )
    return tokens


def _check_task(folder: Path, saved: Namespace, requested: Namespace) -> None:
    if saved.task != requested.task:
        yaml_flags.exit_with(
            f"{folder}: is a run of --task {saved.task}, not {requested.task}. Check --out."
        )


def _changes(saved: TrainSettings, requested: TrainSettings) -> dict[str, str]:
    """Return a description of each saved setting that differs, by name."""
    old, new = to_save(saved), to_save(requested)
    return {
        name: f"{name} {old.get(name)} -> {new[name]}"
        for name in new
        if old.get(name) != new[name] and name != "out"
    }


def _check_changes(saved: TrainSettings, requested: TrainSettings, folder: Path) -> None:
    """Exit if the settings would make it another run."""
    flags = flags_of(type(requested))

    def may_change(name: str) -> bool:
        values = {getattr(saved, name), getattr(requested, name)}
        return flags[name].kind.changeable or values <= {*flags[name].interchangeable}

    changes = _changes(saved, requested)
    refused = [line for name, line in changes.items() if not may_change(name)]
    if refused:
        yaml_flags.exit_with(
            f"--resume continues the run in {folder} with its own settings, but these differ: {'; '.join(refused)}. "
            "Leave the flags out, or use another --out."
        )


def _check_new_run(argv: Sequence[str], folder: str | None) -> None:
    """Exit if the flags are too few to start a run.

    `--resume` without a run starts one, so that a scheduler can use one command for the first start and for restarts.
    """
    names = {token.partition("=")[0] for token in argv if token.startswith("--")}
    if not names - {"--resume", "--out", "--epochs", "--quiet"}:
        yaml_flags.exit_with(
            f"{folder}: holds no run to resume. Check --out, or add the flags of a new run."
        )


def _first(argv: Sequence[str]) -> Namespace:
    """Return the settings that decide which other flags exist."""
    first = argparse.ArgumentParser(prog="train.py", add_help=False, allow_abbrev=False)
    parser.add_flags(first, FirstSettings)
    known = first.parse_known_args(argv)[0]
    is_table = str(known.data).lower().endswith(".csv")
    if known.task == "segmentation" and is_table and not data_kinds.is_of_slides(known.data):
        known.task = "scenes"
    if known.data:
        known.data = data_kinds.place(known.task, known.data)
    return known


def _parsed(tokens: Sequence[str], prog: str) -> TrainSettings:
    """Parse tokens that come from files and from the command line."""
    first = _first(tokens)
    added = ["--task", first.task, *_kind(first)]
    added += ["--data", first.data] if first.data else []
    settings: TrainSettings = parser.parse(
        _parser(first.task, prog), TASKS[first.task].settings_class(), [*tokens, *added]
    )
    return settings


def _kind(first: Namespace) -> list[str]:
    """Return the flag of the kind of the data, if it is missing; exit with 2 if the files do not tell.

    Args:
        first: Settings that decide which other flags exist.
    """
    name = KINDS.get(first.task)
    if name is None:
        return []
    if first.data is None or getattr(first, name) is not None:
        return []
    if name == "bags" and first.features is not None:
        return ["--bags", "features"]
    try:
        return [f"--{name}", data_kinds.kind(name, first.data)]
    except ValueError as error:
        yaml_flags.exit_with(str(error))


def _parser(name: str, prog: str) -> argparse.ArgumentParser:
    """Return the parser of a task."""
    settings = TASKS[name].settings_class()
    command = f"python {prog}" if prog.endswith(".py") else prog
    whole = argparse.ArgumentParser(
        prog=prog,
        description=settings.__doc__,
        epilog=f"Example: {command} {settings.EXAMPLE}.",
        allow_abbrev=False,
    )
    parser.add_flags(whole, settings)
    return whole
