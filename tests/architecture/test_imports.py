"""Who may know whom: the imports of every module, read from the source."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import catchment

ROOT = Path(catchment.__file__).parent
LAYERS = (
    "errors", "version", "names", "randomness", "process", "files",  # modules that anybody may use
    "exchange",  # what travels
    "tasks", "data", "models", "learning", "export",  # machine learning, which knows nothing of federation
    "codecs", "robust", "costs",  # what looks at messages
    "core",  # the interface between algorithms and engines
    "families", "methods",
    "engines",
    "privacy",
    "config",
    "runs",
    "planning",
    "report",
    "watching",
    "keys", "device", "flower",  # real devices
    "launch",
    "trackers", "studies",
    "__init__",  # the public names
    "cli", "__main__",
)  # fmt: skip
"""A module imports from its own part and from parts before it: at its top, in functions and for types alike."""

MODULES = {path.relative_to(ROOT).with_suffix("").as_posix(): path for path in sorted(ROOT.rglob("*.py"))}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


def part(module: str) -> str:
    """The part of the package that a module belongs to: `data` of `data/samples`."""
    return module.split("/")[0]


def imported(tree: ast.Module, package: tuple[str, ...] = ("catchment",)) -> Iterator[str]:
    """Everything that a module imports, dotted; `from a import b` gives `a.b`, whatever b is."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = (".".join(package[: len(package) - node.level + 1]),) if node.level else ()
            start = ".".join((*base, *((node.module,) if node.module else ())))
            yield from (f"{start}.{alias.name}" for alias in node.names)


def parts_imported(module: str) -> set[str]:
    """The parts of this package that a module imports; `__init__` if it asks the package itself for a name."""
    package = ("catchment", *module.split("/")[:-1])
    found = set()
    for name in imported(TREES[module], package):
        if name.split(".")[0] == "catchment":
            below = [*name.split("."), "__init__"][1]
            found.add(below if (ROOT / below).is_dir() or (ROOT / f"{below}.py").exists() else "__init__")
    return found


def modules_of(*parts: str) -> list[str]:
    return [name for name in MODULES if part(name) in parts]


def uses(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
    """Dotted names that are used, by the name of the module they come from: `np.random.seed` is `numpy.random.seed`."""
    origin = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            origin |= {
                a.asname or a.name.split(".")[0]: a.name if a.asname else a.name.split(".")[0] for a in node.names
            }
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            origin |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    for node in ast.walk(tree):
        name, inner = "", node
        while isinstance(inner, ast.Attribute):
            name, inner = f".{inner.attr}{name}", inner.value
        if isinstance(inner, ast.Name) and inner.id in origin:
            yield origin[inner.id] + name, node


USES = {name: list(uses(tree)) for name, tree in TREES.items()}


# ---- the walk itself --------------------------------------------------------------------------------------------


def test_the_walk_sees_every_kind_of_import():
    source = (
        "import a.b\nimport c as d\nfrom catchment import models\nfrom catchment.runs import loop as go\n"
        "from . import beside\nfrom .near import x\nfrom ..other import y\n"
        "def later():\n    from catchment.cli import main\n"
    )
    assert set(imported(ast.parse(source), ("catchment", "methods"))) == {
        "a.b", "c", "catchment.models", "catchment.runs.loop", "catchment.methods.beside", "catchment.methods.near.x",
        "catchment.other.y", "catchment.cli.main",
    }  # fmt: skip


def test_the_walk_sees_the_parts_that_are_there():
    assert parts_imported("methods/fedavg") >= {"core", "learning"}
    assert parts_imported("core/world") >= {"models", "data", "codecs"}  # `from catchment import models` too
    assert {"launch", "config"} <= parts_imported("__init__")


def test_the_walk_sees_through_other_names():
    tree = ast.parse("import numpy as np\nfrom torch import manual_seed as m\nnp.random.seed(0)\nm(1)\nmine.seed()")
    assert {"numpy.random.seed", "torch.manual_seed"} <= {name for name, _ in uses(tree)}
    assert not any("mine" in name for name, _ in uses(tree))


# ---- the rules --------------------------------------------------------------------------------------------------


def test_every_part_has_its_layer():
    assert {part(name) for name in MODULES} == set(LAYERS)


@pytest.mark.parametrize("module", MODULES)
def test_a_module_imports_only_from_layers_below(module):
    below = LAYERS[: LAYERS.index(part(module))]
    assert parts_imported(module) - {part(module)} <= set(below)


TYPES_ONLY = {"core/method": {"core/fleet", "core/server", "core/world"}}
"""The one circle: a method's functions take these, and all of them hold the method. It names them for their types."""


@pytest.mark.parametrize("name", sorted({part(name) for name in MODULES if "/" in name}))
def test_inside_a_part_there_are_no_circles(name):
    inside = {
        module: set(_siblings(module)) - TYPES_ONLY.get(module, set())
        for module in modules_of(name)
        if not module.endswith("__init__")
    }
    while free := [module for module, needs in inside.items() if not needs & inside.keys()]:
        for module in free:
            del inside[module]
    assert not inside


def _siblings(module: str) -> Iterator[str]:
    """The modules of the same part that a module imports."""
    for name in imported(TREES[module], ("catchment", *module.split("/")[:-1])):
        words = name.split(".")
        for found in ("/".join(words[1:3]), "/".join(words[1:2])):
            if found in MODULES and found != module and part(found) == part(module):
                yield found


@pytest.mark.parametrize("module", TYPES_ONLY)
def test_what_is_imported_for_its_type_is_not_imported_when_the_package_runs(module):
    blocks = [
        node for node in TREES[module].body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    ]
    for_types = {name for block in blocks for name in imported(ast.Module(block.body, []))}
    others = set(imported(TREES[module])) - for_types
    assert not {"/".join(name.split(".")[1:3]) for name in others} & TYPES_ONLY[module]


@pytest.mark.parametrize("module", [name for name in modules_of("methods", "codecs") if not name.endswith("__init__")])
def test_a_method_knows_no_other_method(module):
    assert part(module) != "methods" or "methods" not in parts_imported(module)


@pytest.mark.parametrize("module", modules_of("exchange"))
def test_messages_know_nobody(module):
    assert parts_imported(module) <= {"exchange", "errors"}


@pytest.mark.parametrize("module", modules_of("tasks", "data", "models", "learning"))
def test_machine_learning_knows_nothing_of_federation(module):
    assert parts_imported(module) <= {"tasks", "data", "models", "learning", "errors", "names", "randomness"}


@pytest.mark.parametrize("module", modules_of("codecs"))
def test_codecs_see_messages_and_nothing_of_what_they_are_about(module):
    assert parts_imported(module) <= {"codecs", "exchange", "errors", "names"}


@pytest.mark.parametrize("module", modules_of("report"))
def test_a_report_needs_no_training_code(module):
    assert not [name for name in imported(TREES[module]) if name.split(".")[0] in ("torch", "safetensors")]


def test_packages_are_at_most_two_levels_deep():
    assert not [name for name in MODULES if name.count("/") > 1]


@pytest.mark.parametrize("module", MODULES)
def test_a_module_above_400_lines_says_why_at_its_top(module):
    lines = MODULES[module].read_text(encoding="utf-8").count("\n")
    assert lines <= 400 or "Long because" in (ast.get_docstring(TREES[module]) or ""), f"{lines} lines"


# ---- randomness -------------------------------------------------------------------------------------------------

ELSEWHERE = [name for name in MODULES if name != "randomness"]
SEEDING = {
    "torch.manual_seed", "torch.seed", "torch.set_rng_state", "torch.default_generator", "torch.cuda.manual_seed",
    "torch.cuda.manual_seed_all",
}  # fmt: skip
DRAWING = {f"torch.{name}" for name in ("rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial")}


@pytest.mark.parametrize("module", ELSEWHERE)
def test_nothing_draws_from_a_global_generator(module):
    used = {name for name, _ in USES[module]}
    assert not used & SEEDING
    assert not {name for name in used if name.startswith("torch.random.")}
    assert not {name for name in used if name.startswith("numpy.random.")} - {"numpy.random.Generator"}
    assert not {name for name in imported(TREES[module]) if name.split(".")[0] in ("random", "secrets", "uuid")}


@pytest.mark.parametrize("module", ELSEWHERE)
def test_every_draw_of_pytorch_names_its_generator(module):
    calls = {id(node.func): node for node in ast.walk(TREES[module]) if isinstance(node, ast.Call)}
    for name, node in USES[module]:
        if name in DRAWING and id(node) in calls:
            assert "generator" in {keyword.arg for keyword in calls[id(node)].keywords}, f"line {node.lineno}"


def test_randomness_itself_is_where_seeding_happens():
    assert {"torch.default_generator.manual_seed", "numpy.random.default_rng"} <= {n for n, _ in USES["randomness"]}


# ---- pickle -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", MODULES)
def test_there_is_no_pickle_anywhere(module):
    unsafe = {"pickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "copyreg"}
    assert not {name for name in imported(TREES[module]) if name.split(".")[0] in unsafe}
    assert not {name for name, _ in USES[module]} & {"torch.load", "torch.save", "torch.package"}


@pytest.mark.parametrize("module", MODULES)
def test_numpys_files_are_read_without_pickle(module):
    calls = {id(node.func): node for node in ast.walk(TREES[module]) if isinstance(node, ast.Call)}
    loads = [calls[id(node)] for name, node in USES[module] if name == "numpy.load"]
    for call in loads:
        assert [ast.unparse(word) for word in call.keywords] == ["allow_pickle=False"], f"line {call.lineno}"
    assert MODULES[module].read_text(encoding="utf-8").count("allow_pickle") == len(loads)
