"""The shape of the code: packages import one way, pure packages stay pure, files and functions stay short."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "docs"))

from draw_map import MODULES, PACKAGE, imports, levels, package_graph, package_of, tree

PURE = {"", "errors", "units", "geometry", "plan", "sources", "tissue"}
"""Packages that run without TensorFlow and Keras, and so import fast."""

COVERED_BY = {
    **{
        f"cli.settings.{name}": "cli/settings/test_request.py"
        for name in (
            *("training_settings", "commands", "data_settings", "run_settings"),
            *("background_settings", "choices", "feature_settings"),
            *("volume_segmentation_settings", "reader_settings"),
        )
    },
    "cli.data.lymph_nodes": "cli/data/collections/test_camelyon17.py",
    "cli.data.tcga_slides": "cli/data/collections/test_tcga_nsclc.py",
    "cli.settings.evaluation": "cli/commands/test_evaluate.py",
    "cli.settings.patch_settings": "cli/settings/test_request.py",
    "cli.settings.patchgd_segmentation_settings": "cli/settings/test_request.py",
    "cli.settings.scene_settings": "cli/settings/test_request.py",
    "cli.settings.slide_settings": "cli/settings/test_request.py",
    "cli.settings.tasks": "cli/settings/test_flag.py",
    "cli.tasks.class_target": "cli/tasks/test_mil.py",
    "cli.tasks.label_target": "cli/tasks/test_targets.py",
    "cli.tasks.regression_target": "cli/tasks/test_targets.py",
    "cli.tasks.segmentation": "cli/commands/test_train.py",
    "cli.tasks.survival_target": "cli/tasks/test_targets.py",
    "cli.tasks.target": "cli/tasks/test_targets.py",
    "cli.tasks.volume_results": "cli/tasks/test_volume_segmentation.py",
    "cli.tasks.task": "cli/tasks/test_trainer.py",
    "engine.sweep_runner": "engine/test_program.py",
    "engine.sweep_calls": "engine/test_program.py",
    "engine.store_allocator": "engine/test_program.py",
    "engine.sweep_state": "engine/test_program.py",
    "stores.tiled_store": "stores/test_image_store.py",
    "stores.transfers": "stores/test_image_store.py",
    "models.torch_layers": "models/test_resnet.py",
    "network.loss_reductions": "network/test_losses.py",
    "streaming.loss_step": "streaming/test_losses_and_metrics.py",
    "streaming.prediction": "streaming/test_predict_to.py",
    "streaming.trackers": "streaming/test_fit.py",
    "streaming.twin_model": "streaming/test_saving.py",
    "layers": "layers/test_interface.py",
    "plan.canonical": "engine/test_shared_traces.py",
    "system.backend": "streaming/test_errors.py",
    "training.checkpointing": "training/test_loop.py",
    "training.single_process": "training/test_loop.py",
}
"""Modules without a test file of their own name, and the file that tests them."""

ENGINE = {"network", "plan", "stores", "engine", "streaming"}

MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 60
"""Without the docstring."""

MAX_ATTRIBUTES, MAX_PUBLIC_METHODS = 21, 27
"""What one must know of a class; how many private methods do the work is left to what reads well."""

NAMELESS = {"utils", "util", "helpers", "helper", "manager", "misc", "common"}


def modules_of(packages: set[str]) -> list[str]:
    """Return the modules of some packages."""
    found = [module for module in MODULES if package_of(module) in packages]
    assert found
    return found


def test_packages_import_one_way() -> None:
    level = levels(package_graph())  # raises for a circle
    assert level["errors"] == 0
    assert level["cli"] == max(level.values())


def test_a_circle_of_packages_is_found() -> None:
    with pytest.raises(ValueError, match="in a circle: a -> b -> a"):
        levels({"a": {"b"}, "b": {"a"}})


def test_modules_of_a_package_import_one_way() -> None:
    inside = {
        module: {i for i in imports(module) & MODULES.keys() if package_of(i) == package_of(module)}
        - {module}
        for module in MODULES
        if package_of(module)
    }
    levels(inside)


def test_the_order_of_the_engine() -> None:
    level = levels(package_graph())
    order = ["geometry", "network", "plan", "engine", "streaming", "mil", "", "cli"]
    assert [level[name] for name in order] == sorted({level[name] for name in order})
    assert level["stores"] < level["engine"]


@pytest.mark.parametrize(
    ("package", "others"),
    [
        ("plan", {"stores", "engine"}),
        ("stores", {"network", "plan", "engine"}),
        ("training", {"results", "mil", "patchgd", "cli"}),
        ("results", {"training", "cli"}),
    ],
)
def test_neighbours_know_nothing_of_each_other(package: str, others: set[str]) -> None:
    """Plans and stores meet in the engine, and training and results in the command line."""
    assert not reached_packages(package) & others


def test_only_the_command_line_imports_models() -> None:
    """But for the names of networks that packages offer again."""
    users = {
        module
        for module in MODULES
        if package_of(module) not in ("models", "cli")
        and any(package_of(i) == "models" for i in imports(module))
    }
    assert users == {"tfbig.mil", "tfbig.patchgd"}


def test_nobody_imports_models_by_its_folder() -> None:
    """A user's own `models` must not take the place of ours."""
    for module in MODULES:
        assert not {i for i in imports(module) if i.split(".")[0] == "models"}, module


@pytest.mark.parametrize(
    "package", ["sources", "tissue", "results", "metrics", "models", "survival"]
)
def test_slides_and_results_know_no_engine(package: str) -> None:
    assert not reached_packages(package) & ENGINE


def reached_packages(package: str) -> set[str]:
    """Return the packages that a package imports, directly or not."""
    graph, waiting, below = package_graph(), [package], set()
    while waiting:
        waiting += (new := graph[waiting.pop()] - below)
        below |= new
    return below


def test_callbacks_are_created_in_one_module() -> None:
    """So that all their errors come out as they were raised."""
    calls = {"numpy_function", "py_function", "py_func"}
    for module, path in MODULES.items():
        uses = {"tf"} if module == "tfbig.system.callbacks" else {"callbacks"}
        owners = {
            n.value.id
            for n in ast.walk(tree(path))
            if isinstance(n, ast.Attribute) and n.attr in calls and isinstance(n.value, ast.Name)
        }
        assert owners <= uses, module


def reached(module: str) -> set[str]:
    """Everything that a module imports, directly or not, without the packages on the way."""
    found: set[str] = set()
    waiting = [module]
    while waiting:
        for imported in imports(waiting.pop()) - found:
            found.add(imported)
            if imported in MODULES and imported != "tfbig":
                waiting.append(imported)
    return found


def test_pure_packages_reach_neither_tensorflow_nor_keras() -> None:
    for module in modules_of(PURE - {""}):
        roots = {imported.partition(".")[0] for imported in reached(module)}
        assert not roots & {"tensorflow", "keras"}, module


def test_the_other_packages_do_reach_tensorflow() -> None:
    """So the walk above finds something."""
    roots = {imported.partition(".")[0] for imported in reached("tfbig.network.keras_reader")}
    assert "tensorflow" in roots


def test_files_are_short() -> None:
    for module, path in MODULES.items():
        lines = len(path.read_text(encoding="utf-8").splitlines())
        assert lines <= MAX_FILE_LINES, f"{module} has {lines} lines; split it by noun"


def test_functions_are_short() -> None:
    for module, path in MODULES.items():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                lines = node.end_lineno - node.lineno + 1 - _docstring_lines(node)
                assert lines <= MAX_FUNCTION_LINES, f"{module}: {node.name} has {lines} lines"


def test_little_must_be_known_of_a_class() -> None:
    for module, path in MODULES.items():
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.ClassDef):
                methods = [part for part in node.body if isinstance(part, ast.FunctionDef)]
                public = [part.name for part in methods if not part.name.startswith("_")]
                assert len(_attributes(node)) <= MAX_ATTRIBUTES, f"{module}: {node.name}"
                assert len(public) <= MAX_PUBLIC_METHODS, f"{module}: {node.name}"


def _attributes(node: ast.ClassDef) -> set[str]:
    """Return the fields of a class, and what its methods assign to `self`."""
    fields = {part.target.id for part in node.body if isinstance(part, ast.AnnAssign)}  # type: ignore[union-attr]
    return fields | {
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute)
        and isinstance(each.ctx, ast.Store)
        and isinstance(each.value, ast.Name)
        and each.value.id == "self"
    }


FOREIGN = {
    "tfbig.system.keras_internals",
    "tfbig.system.tensorflow_internals",
    "tfbig.sources.arrays",
}
"""Modules that read private attributes of Keras, TensorFlow and NumPy."""


NAMED_TUPLE = {"_replace", "_asdict", "_fields"}
"""Public attributes of every named tuple, which begin with an underscore so that fields may have any name."""


def test_methods_of_an_object_are_its_methods() -> None:
    """A function of a module that reads private attributes of an argument belongs into the class of the argument."""
    for module in MODULES.keys() - FOREIGN:
        for function in tree(MODULES[module]).body:
            if isinstance(function, ast.FunctionDef):
                arguments = {a.arg for a in (*function.args.args, *function.args.kwonlyargs)}
                read = [
                    ast.unparse(node)
                    for node in ast.walk(function)
                    if isinstance(node, ast.Attribute)
                    and isinstance(node.value, ast.Name)
                    and node.value.id in arguments
                    and node.attr.startswith("_")
                    and not node.attr.startswith("__")
                    and node.attr not in NAMED_TUPLE
                ]
                assert not read, f"{module}: {function.name} reads {read}"


def test_plans_are_values() -> None:
    """No attribute changes after `__init__`."""
    for module in modules_of({"plan"}):
        for function in ast.walk(tree(MODULES[module])):
            if isinstance(function, ast.FunctionDef) and function.name != "__init__":
                stored = [
                    node.attr
                    for node in ast.walk(function)
                    if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
                ]
                assert not stored, f"{module}: {function.name} assigns {stored}"


LIGHT = "tfbig.cli.settings"
"""Package that is imported before the arguments are known."""
HEAVY = {"tensorflow", "keras", "numpy", "skimage", "scipy", "matplotlib", "h5py", "tifffile"}


def test_settings_import_nothing_heavy() -> None:
    light = [module for module in MODULES if module.startswith(LIGHT)]
    assert light
    for module in light:
        roots = {imported.partition(".")[0] for imported in reached(module)}
        assert not roots & HEAVY, module


def _docstring_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    if ast.get_docstring(node) is None:
        return 0
    text = node.body[0]
    assert text.end_lineno is not None
    return text.end_lineno - text.lineno + 1


def test_files_have_a_docstring() -> None:
    for module, path in MODULES.items():
        assert not NAMELESS & set(path.relative_to(PACKAGE).with_suffix("").parts), module
        assert ast.get_docstring(tree(path)), f"{module} has no docstring"


def test_modules_have_a_test_file() -> None:
    """`tfbig/plan/cost.py` is tested by `tests/plan/test_cost.py`, or named in `COVERED_BY`."""
    for module in (m for m, path in MODULES.items() if path.name != "__init__.py"):
        *packages, name = module.removeprefix("tfbig.").split(".")
        mirror = "/".join([*packages, f"test_{name}.py"])
        covering = COVERED_BY.get(module.removeprefix("tfbig."), mirror)
        assert (ROOT / "tests" / covering).exists(), f"write tests/{mirror}"
        superfluous = covering != mirror and (ROOT / "tests" / mirror).exists()
        assert not superfluous, f"drop {module} from COVERED_BY"
