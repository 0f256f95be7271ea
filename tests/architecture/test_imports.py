"""Who may know whom: the imports of every module, read from the source. A rule lists all modules that break it."""

import ast
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import catchment

ROOT = Path(catchment.__file__).parent
LAYERS = (
    "errors", "version", "names", "reading", "randomness", "process", "files",  # modules that anybody may use
    "exchange",  # what travels
    "tasks", "data", "models", "learning", "export",  # machine learning, which knows nothing of federation
    "codecs", "robust",  # what looks at messages
    "client",  # a client's side of a request, whatever runs its handlers
    "core",  # the interface between algorithms and transports
    "families", "methods",
    "runtimes",  # where handlers run
    "simulation",
    "privacy",
    "config",
    "runs",
    "planning",
    "report",
    "watching",
    "keys", "device", "flower",  # real devices
    "launch",
    "trackers", "studies", "testing",
    "__init__",  # the public names
    "cli", "__main__",
)  # fmt: skip
"""A module imports from its own part and from parts before it: at its top, in functions and for types alike."""

MODULES = {path.relative_to(ROOT).with_suffix("").as_posix(): path for path in sorted(ROOT.rglob("*.py"))}


@cache
def text(module: str) -> str:
    return MODULES[module].read_text(encoding="utf-8")


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(text(module))


def part(module: str) -> str:
    """The part of the package that a module belongs to: `data` of `data/samples`."""
    return module.split("/")[0]


def modules_of(*parts: str) -> list[str]:
    return [name for name in MODULES if part(name) in parts]


def imported(tree: ast.Module, package: tuple[str, ...] = ("catchment",)) -> Iterator[str]:
    """Everything that a module imports, dotted; `from a import b` gives `a.b`, whatever b is."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = (".".join(package[: len(package) - node.level + 1]),) if node.level else ()
            start = ".".join((*base, *((node.module,) if node.module else ())))
            yield from (f"{start}.{alias.name}" for alias in node.names)


@cache
def imports(module: str) -> tuple[str, ...]:
    """Everything that a module of this package imports."""
    return tuple(imported(tree(module), ("catchment", *module.split("/")[:-1])))


def parts_imported(module: str) -> set[str]:
    """The parts of this package that a module imports; `__init__` if it asks the package itself for a name."""
    found = set()
    for name in imports(module):
        if name.split(".")[0] == "catchment":
            below = [*name.split("."), "__init__"][1]
            found.add(below if (ROOT / below).is_dir() or (ROOT / f"{below}.py").exists() else "__init__")
    return found


def siblings(module: str) -> Iterator[str]:
    """The modules of the same part that a module imports."""
    for name in imports(module):
        words = name.split(".")
        for found in ("/".join(words[1:3]), "/".join(words[1:2])):
            if found in MODULES and found != module and part(found) == part(module):
                yield found


def packages_imported(module: str) -> set[str]:
    """The first words of all that a module imports: `torch` of `torch.nn.functional`."""
    return {name.split(".")[0] for name in imports(module)}


def used(tree: ast.Module) -> Iterator[tuple[str, ast.AST]]:
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


@cache
def uses(module: str) -> tuple[tuple[str, ast.AST], ...]:
    return tuple(used(tree(module)))


def names_used(module: str) -> set[str]:
    return {name for name, _ in uses(module)}


def calls(module: str) -> dict[int, ast.Call]:
    """All calls in a module, by the node of what is called."""
    return {id(node.func): node for node in ast.walk(tree(module)) if isinstance(node, ast.Call)}


def broken(modules: Iterable[str], wrong: Callable[[str], Any]) -> dict[str, Any]:
    """The modules in which something is wrong, and what."""
    return {module: found for module in modules if (found := wrong(module))}


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
    assert {"numpy.random.seed", "torch.manual_seed"} <= {name for name, _ in used(tree)}
    assert not any("mine" in name for name, _ in used(tree))


def test_a_rule_names_the_modules_that_break_it():
    assert broken(["a", "b"], lambda module: {"b": {"torch"}}.get(module, set())) == {"b": {"torch"}}


# ---- the rules --------------------------------------------------------------------------------------------------


def test_every_part_has_its_layer():
    assert {part(name) for name in MODULES} == set(LAYERS)


def test_a_module_imports_only_from_layers_below():
    below = {name: {name, *LAYERS[:number]} for number, name in enumerate(LAYERS)}
    assert broken(MODULES, lambda module: parts_imported(module) - below[part(module)]) == {}


TYPES_ONLY = {"core/method": {"core/fleet", "core/server", "core/world"}}
"""The one circle: a method's functions take these, and all of them hold the method. It names them for their types."""


def test_inside_a_part_there_are_no_circles():
    left = {
        module: set(siblings(module)) - TYPES_ONLY.get(module, set())
        for module in MODULES
        if not module.endswith("__init__")
    }
    while free := [module for module, needs in left.items() if not needs & left.keys()]:
        for module in free:
            del left[module]
    assert left == {}


def test_what_is_imported_for_its_type_is_not_imported_when_the_package_runs():
    for module, types in TYPES_ONLY.items():
        body = tree(module).body
        blocks = [node for node in body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"]
        for_types = {name for block in blocks for name in imported(ast.Module(block.body, []))}
        assert not {"/".join(name.split(".")[1:3]) for name in set(imports(module)) - for_types} & types


LEARNING = ("tasks", "data", "models", "learning")  # machine learning, which knows nothing of federation
ALONE = {
    "exchange": {"exchange", "errors"},
    **{part: {*LEARNING, "errors", "names", "reading", "randomness"} for part in LEARNING},
    "codecs": {"codecs", "exchange", "errors", "names"},
    "client": {"client", "codecs", "exchange", "errors", "files"},
}
"""Parts that know less than their layer allows."""


def test_some_parts_know_only_a_few():
    assert broken(modules_of(*ALONE), lambda module: parts_imported(module) - ALONE[part(module)]) == {}


def test_a_method_knows_at_most_one_other_method_which_knows_none():
    methods = [module for module in modules_of("methods") if not module.endswith("__init__")]
    others = {module: set(siblings(module)) for module in methods}
    assert (
        broken(methods, lambda module: len(others[module]) > 1 or any(others[other] for other in others[module])) == {}
    )


def test_a_report_needs_no_training_code():
    assert broken(modules_of("report"), lambda module: packages_imported(module) & {"torch", "safetensors"}) == {}


def test_packages_are_at_most_two_levels_deep():
    assert not [name for name in MODULES if name.count("/") > 1]


def test_a_module_above_400_lines_says_why_at_its_top():
    def too_long(module: str) -> int:
        lines = text(module).count("\n")
        return lines if lines > 400 and "Long because" not in (ast.get_docstring(tree(module)) or "") else 0

    assert broken(MODULES, too_long) == {}


# ---- randomness -------------------------------------------------------------------------------------------------

ELSEWHERE = [name for name in MODULES if name != "randomness"]
SEEDING = {
    "torch.manual_seed", "torch.seed", "torch.set_rng_state", "torch.default_generator", "torch.cuda.manual_seed",
    "torch.cuda.manual_seed_all",
}  # fmt: skip
DRAWING = {f"torch.{name}" for name in ("rand", "randn", "randint", "randperm", "normal", "bernoulli", "multinomial")}


def test_nothing_draws_from_a_global_generator():
    def draws(module: str) -> set[str]:
        names = names_used(module)
        numpy = {name for name in names if name.startswith("numpy.random.")} - {"numpy.random.Generator"}
        torch = {name for name in names if name.startswith("torch.random.")}
        return names & SEEDING | numpy | torch | packages_imported(module) & {"random", "secrets", "uuid"}

    assert broken(ELSEWHERE, draws) == {}


def test_every_draw_of_pytorch_names_its_generator():
    def lines(module: str) -> list[int]:
        called = calls(module)
        drawing = [called[id(node)] for name, node in uses(module) if name in DRAWING and id(node) in called]
        return [call.lineno for call in drawing if "generator" not in {keyword.arg for keyword in call.keywords}]

    assert broken(ELSEWHERE, lines) == {}


def test_randomness_itself_is_where_seeding_happens():
    assert {"torch.default_generator.manual_seed", "numpy.random.default_rng"} <= names_used("randomness")


# ---- pickle -----------------------------------------------------------------------------------------------------


def test_there_is_no_pickle_anywhere():
    unsafe = {"pickle", "_pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "copyreg"}
    loading = {"torch.load", "torch.save", "torch.package"}
    assert broken(MODULES, lambda module: packages_imported(module) & unsafe | names_used(module) & loading) == {}


def test_numpys_files_are_read_without_pickle():
    def wrong(module: str) -> list[int]:
        called = calls(module)
        loads = [called[id(node)] for name, node in uses(module) if name == "numpy.load"]
        lines = [c.lineno for c in loads if [ast.unparse(word) for word in c.keywords] != ["allow_pickle=False"]]
        return lines if text(module).count("allow_pickle") == len(loads) else [*lines, 0]

    assert broken(MODULES, wrong) == {}
