"""Settings of a training run: flags win over `--config`, that over the resumed run, that over the defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from tfbig.choices import CONFIG
from tfbig.cli.paths import FlagError
from tfbig.cli.settings import (
    applies,
    data_kinds,
    flag_errors,
    help_text,
    merge,
    parser,
    yaml_flags,
)
from tfbig.cli.settings.flag import flags_of, to_save, with_current_names
from tfbig.cli.settings.merge import Layer
from tfbig.cli.settings.tasks import TrainSettings
from tfbig.tasks import DEFAULT, TASKS

KIND_FLAG = {"images": "images", "mil": "bags"}
"""Flag of the kind of the data, of the tasks that have one."""


def parse(argv: Sequence[str], prog: str = "train.py") -> TrainSettings:
    """Parse the command line of a training; print the help and exit if it asks for it.

    `prog` is the name of the program in help and errors.

    Raises:
        FlagError: A flag is wrong, or a file of settings.
    """
    words = _first_words(argv)
    config = words.values["config"]
    recipe = [yaml_flags.layer_of(config)] if config else []
    if parser.asks_for_help(argv):
        print(page(argv, task_of([*recipe, words], prog), prog))
        raise SystemExit(0)
    resumes, folder = "--resume" in argv, words.values["out"]
    if resumes and folder is None:
        raise FlagError("--resume continues a run: name its folder with --out FOLDER.")
    saved = _saved(Path(folder or "")) if resumes else []
    task = task_of([*saved, *recipe, words], prog)
    if saved and task_of(saved, prog) != task:
        raise FlagError(
            f"{folder}: is a run of --task {task_of(saved, prog)}, not {task}. Check --out."
        )
    given = read(argv, task, prog)
    settings = merged(task, [*saved, *recipe, given], prog)
    if saved:
        _check_changes(merged(task, saved, prog), settings, folder or "")
    elif resumes:
        _check_new_run(given, folder or "")
    return settings


def read(argv: Sequence[str], task: str, prog: str) -> Layer:
    """Read the flags of a command line.

    Raises:
        FlagError: A flag does not exist.
    """
    with flag_errors.listed_by(f"{prog} --task {task}"):
        return Layer(parser.read(argv, flags_of(TASKS[task].settings_class())))


def merged(task: str, layers: Sequence[Layer], prog: str) -> TrainSettings:
    """Merge layers of settings; if none says the kind of the data, its files do.

    Raises:
        FlagError: A setting is wrong.
    """

    def derive(values: Mapping[str, Any]) -> Mapping[str, Any]:
        found = {**values, "task": task}
        if found.get("data"):
            found["data"] = data_kinds.place(task, found["data"])
        return found | _kind(task, found)

    chosen = TASKS[task].settings_class()
    settings: TrainSettings = merge.merged(chosen, layers, f"{prog} --task {task}", derive)
    return settings


def task_of(layers: Sequence[Layer], prog: str) -> str:
    """The task of some layers, which decides the other flags; `scenes` for a table that is not of slides.

    Raises:
        FlagError: There is no such task.
    """
    flag = flags_of(TASKS[DEFAULT].settings_class())["task"]
    given = merge.last_value(layers, "task")
    with flag_errors.listed_by(prog):
        task = DEFAULT if given is None else str(merge.value_of(flag, given, flag.shown))
    data = str(merge.last_value(layers, "data") or "")
    if task == DEFAULT and data.lower().endswith(".csv") and not data_kinds.is_of_slides(data):
        return "scenes"
    return task


def page(argv: Sequence[str], task: str, prog: str) -> str:
    """The help of a task: its flags that apply with those of a command line."""
    settings, name = TASKS[task].settings_class(), KIND_FLAG.get(task, "")
    flags = dict(flags_of(settings))
    values = help_text.known(argv, flags)
    if name and parser.given(argv, name) is None:
        values[name] = _known_kind(name, parser.given(argv, "data"))
    flags.pop("test_only")  # tfbig evaluate stands for it
    if parser.given(argv, "task") is not None:
        flags.pop("task")
    command = f"python {prog}" if prog.endswith(".py") else prog
    return help_text.page(
        f"{command} --task {task} [FLAGS]",
        settings.__doc__ or "",
        flags,
        f"Example: {command} {settings.EXAMPLE}.",
        values,
    )


def _known_kind(name: str, data: str | None) -> str | None:
    """The kind of some data, for the help; None if it is not known."""
    with suppress(ValueError, OSError):
        return data_kinds.kind(name, data) if data else None
    return None


def current_names(values: Mapping[str, Any]) -> dict[str, Any]:
    """Rename the settings in the `config.yaml` of a run as they are called now."""
    task = TASKS.get(str(values.get("task")))
    return with_current_names(values, task.settings_class()) if task else dict(values)


def in_use(values: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that play a part in a run, of those that its `config.yaml` holds."""
    task = TASKS.get(str(values.get("task")))
    values = current_names(values)
    flags = flags_of(task.settings_class()) if task else {}
    return {
        name: value
        for name, value in values.items()
        if name not in flags or applies.unmet(name, flags, values) is None
    }


def resume_notices(settings: TrainSettings) -> list[str]:
    """Say in one line how a resumed run differs from the one in its folder; empty if it does not.

    `settings` are those of the run, before its folder is written.
    """
    if not settings.resume:
        return []
    saved = _saved(Path(settings.out or ""))
    if not saved:
        return [f"{settings.out}: holds no run yet; starting it"]
    changes = _changes(merged(settings.task, saved, "train.py"), settings)
    return [f"continues with {'; '.join(changes.values())}"] if changes else []


def _first_words(argv: Sequence[str]) -> Layer:
    """Read the flags that decide which others there are, and where settings are from."""
    return Layer({name: parser.given(argv, name) for name in ("task", "data", "config", "out")})


def _saved(folder: Path) -> list[Layer]:
    """Read the settings of the run in a folder; empty if there is no run.

    Raises:
        FlagError: They are damaged.
    """
    if not (folder / CONFIG).exists():
        return []
    layer = yaml_flags.layer_of(folder / CONFIG)
    if not layer.values:
        raise FlagError(
            f"{folder / CONFIG}: is empty; expected the settings of the run. Put it back, or start a new run."
        )
    return [layer]


def _changes(saved: TrainSettings, requested: TrainSettings) -> dict[str, str]:
    """Describe each saved setting that differs, by name."""
    old, new = to_save(saved), to_save(requested)
    return {
        name: f"{name} {old.get(name)} -> {new[name]}"
        for name in new
        if old.get(name) != new[name] and name != "out"
    }


def _check_changes(saved: TrainSettings, requested: TrainSettings, folder: str) -> None:
    """Check that the settings do not make it another run.

    Raises:
        FlagError: They do.
    """
    flags = flags_of(type(requested))

    def may_change(name: str) -> bool:
        values = {getattr(saved, name), getattr(requested, name)}
        return flags[name].kind.changeable or values <= {*flags[name].same_results}

    changes = _changes(saved, requested)
    refused = [line for name, line in changes.items() if not may_change(name)]
    if refused:
        raise FlagError(
            f"--resume continues the run in {folder} with its own settings, but these differ: {'; '.join(refused)}. "
            "Leave the flags out, or use another --out."
        )


def _check_new_run(given: Layer, folder: str) -> None:
    """Check that the flags are enough to start a run.

    `--resume` without a run starts one, so that a scheduler can use one command for the first start and for restarts.

    Raises:
        FlagError: They are too few.
    """
    if not given.values.keys() - {"resume", "out", "epochs", "quiet"}:
        raise FlagError(
            f"{folder}: holds no run to resume. Check --out, or add the flags of a new run."
        )


def _kind(task: str, values: Mapping[str, Any]) -> dict[str, str]:
    """The kind of the data by the name of its setting, if it is missing.

    Raises:
        FlagError: The files do not tell it, or contradict it.
    """
    name = KIND_FLAG.get(task)
    if name is None:
        return {}
    data, given = values.get("data"), values.get(name)
    if data is None or given is not None:
        return {}
    if name == "bags" and values.get("features") is not None:
        return {"bags": "features"}
    try:
        return {name: data_kinds.kind(name, data)}
    except ValueError as error:
        raise FlagError(str(error)) from error
