"""What the benchmarks share: a command line from a dataclass, processes of their own, and ways that run in turn.

A benchmark declares its flags as the fields of a frozen dataclass, `Arguments`. A string in an annotation is the help
of the flag, and a collection holds what it may be:

    @dataclass(frozen=True)
    class Arguments:
        side: Annotated[int, "rows and columns of the image"] = 512
        ways: Annotated[Sequence[str], ("plain", "streamed")] = ("plain", "streamed")

    print(harness.apart(measure, harness.read(Arguments), "plain"))    # `measure(arguments, "plain")` in a new process
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import MISSING, asdict, fields
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

ROOT = Path(__file__).resolve().parent.parent
if __name__ == "__main__":
    sys.path[0] = str(ROOT)

from benchmarks import report

WORD = object()
"""In an annotation: the argument is a word of its own, without a flag."""

Arguments = TypeVar("Arguments")
Figures = dict[str, Any]


def read(kind: type[Arguments], words: Sequence[str] | None = None) -> Arguments:
    """Read the command line, or other words, into a dataclass."""
    about = str(sys.modules[kind.__module__].__doc__).partition("\n")[0]
    parser = argparse.ArgumentParser(description=about)
    types, annotations = get_type_hints(kind), get_type_hints(kind, include_extras=True)
    for field in fields(kind):  # type: ignore[arg-type]
        notes = getattr(annotations[field.name], "__metadata__", ())
        options = _options(types[field.name], notes)
        name = f"--{field.name.replace('_', '-')}"
        if WORD in notes:
            name = field.name
            if field.default is not MISSING:
                options["nargs"] = "*" if "nargs" in options else "?"
        parser.add_argument(name, default=field.default, **options)
    return kind(**vars(parser.parse_args(words)))


def _options(kind: Any, notes: Iterable[Any]) -> dict[str, Any]:
    """Say to argparse how a value of a type is read."""
    options: dict[str, Any] = {"help": next((x for x in notes if isinstance(x, str)), None)}
    if kind is bool:
        return options | {"action": "store_true"}
    if isinstance(kind, UnionType):  # with None
        kind = get_args(kind)[0]
    if get_origin(kind) is Sequence:
        options["nargs"], kind = "+", get_args(kind)[0]
    choices = next((x for x in notes if isinstance(x, Collection) and not isinstance(x, str)), None)
    return options | {"type": kind, "choices": choices}


# ------------------------------------------------------------------------------------ processes


def apart(function: Callable[..., Figures], arguments: Any, *more: Any) -> Figures:
    """Call `function(arguments, *more)` in a process of its own, and return what it returns.

    Memory that it peaks at, and what it traces and compiles, are then its own.

    Both are of one benchmark, and JSON can hold the further arguments.
    """
    file = Path(function.__code__.co_filename).resolve().relative_to(ROOT)
    module = ".".join(file.with_suffix("").parts)
    values = json.dumps([asdict(arguments), *more], default=str)
    return report.in_own_process([__file__, module, function.__name__, values])


def in_turn(
    ways: Iterable[str], rounds: int, run: Callable[[str], Figures]
) -> dict[str, list[Figures]]:
    """Run every way once in each round, so that other load on the machine affects all of them.

    A way that fails is left out: the others have taken minutes.
    """
    found: dict[str, list[Figures]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way in list(found):
            try:
                found[way].append(run(way))
            except subprocess.CalledProcessError as error:
                del found[way]
                print(f"{way} is left out: it ended with {error.returncode}", file=sys.stderr)
    return found


def ratio(ours: Sequence[Figures], others: Sequence[Figures], figure: str) -> float:
    """Compare a figure with that of another way in the same round: the median over the rounds."""
    pairs = zip(ours, others, strict=True)
    return round(statistics.median(a[figure] / b[figure] for a, b in pairs), 3)


def _called() -> None:
    """Print what a function returns that `apart` calls."""
    name, function, values = sys.argv[1:]
    module = importlib.import_module(name)
    arguments, *more = json.loads(values)
    print(json.dumps(getattr(module, function)(module.Arguments(**arguments), *more)))


if __name__ == "__main__":
    _called()
