"""YAML without aliases."""

import os

import pytest
import yaml
from resource_limits import cheap

from tfbig import SourceError
from tfbig.system.yaml_files import load_yaml, read_yaml


def test_plain_values():
    assert load_yaml("a: 1\nb: [x, 2.5, true]\nc:\n") == {"a": 1, "b": ["x", 2.5, True], "c": None}


def test_aliases_are_refused():
    lines = ["a0: &a0 [lol, lol]"]
    lines += [f"a{i}: &a{i} [*a{i - 1}, *a{i - 1}]" for i in range(1, 40)]
    with pytest.raises(yaml.YAMLError, match="alias 'a0' is not supported"):
        load_yaml("\n".join(lines))


def test_objects_are_refused():
    with pytest.raises(yaml.YAMLError, match="could not determine a constructor"):
        load_yaml("a: !!python/object/apply:os.getcwd []")


FILES = {
    "no text": b"\xff\xfe\xfa",
    "an object": b"a: !!python/object/apply:os.getcwd []",
    "no boolean": b"a: !!bool x",
    "no time": b"a: !!timestamp x",
    "an impossible date": b"a: 2024-99-99",
    "lists in lists": b"[" * 10**5,
    "a number in sixtieths": b"a: 1" + b":1" * 10**5,
    "a long number": b"a: 1" + b"0" * 10**6,
    "too long": b"a" * (2**21 + 2**17),
    "two lines": b"a: [\nb",
    "control characters": b"a: \x1b[0m",
}


@pytest.mark.parametrize("what", FILES)
def test_every_error_is_one_line_with_the_file(what, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_bytes(FILES[what])
    with (
        cheap(),
        pytest.raises(SourceError, match=r"c\.yaml: (is not YAML|has 2\.2 MiB)") as raised,
    ):
        read_yaml(path)
    assert str(raised.value).isprintable()


def test_what_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe.yaml")
    for name in ("pipe.yaml", ".", "none"):
        with pytest.raises(SourceError):
            read_yaml(tmp_path / name)
