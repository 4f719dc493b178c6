"""YAML without aliases."""

import pytest
import yaml

from tfbig.system.yaml_files import load_yaml


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
