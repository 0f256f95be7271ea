"""Who may know whom: the imports of every module, read from the source."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import catchment

ROOT = Path(catchment.__file__).parent
TOP = {
    "run",
    "finished",
    "experiment",
    "cli",
    "device",
    "policy",
    "flower",
    "__init__",
    "__main__",
}  # know everything; nothing else may know them
PURE = {
    "models", "data", "losses", "aggregators", "averaging", "evaluate", "training", "report", "names", "randomness",
    "errors", "optimizers", "export", "spool", "process", "ensembles", "pictures", "decoders", "likeness",
}  # fmt: skip
MESSAGES_ONLY = {"costs", "codecs", "attacks", "inspection"}

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
        "import a.b\nimport c as d\nfrom catchment import models\nfrom catchment.run import run as go\n"
        "from . import beside\nfrom .near import x\nfrom ..other import y\n"
        "def later():\n    from catchment.cli import main\n"
    )
    assert set(imported(ast.parse(source), ("catchment", "methods"))) == {
        "a.b", "c", "catchment.models", "catchment.run.run", "catchment.methods.beside", "catchment.methods.near.x",
        "catchment.other.y", "catchment.cli.main",
    }  # fmt: skip


def test_the_walk_sees_the_parts_that_are_there():
    assert {"message", "data", "models", "methods", "run"} <= {part(name) for name in MODULES}
    assert parts_imported("methods/fedavg") >= {"client", "fleet", "method", "training"}
    assert parts_imported("world") >= {"models", "data", "costs"}  # `from catchment import models` is no `__init__`
    assert {"run", "experiment"} <= parts_imported("__init__")


def test_the_walk_sees_through_other_names():
    tree = ast.parse("import numpy as np\nfrom torch import manual_seed as m\nnp.random.seed(0)\nm(1)\nmine.seed()")
    assert {"numpy.random.seed", "torch.manual_seed"} <= {name for name, _ in uses(tree)}
    assert not any("mine" in name for name, _ in uses(tree))


# ---- the rules --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", modules_of(*PURE))
def test_models_data_and_the_like_know_nothing_of_federation(module):
    assert parts_imported(module) <= PURE


@pytest.mark.parametrize("module", modules_of("message"))
def test_messages_know_nobody(module):
    assert parts_imported(module) <= {"errors"}


@pytest.mark.parametrize("module", modules_of(*MESSAGES_ONLY))
def test_costs_codecs_and_attacks_see_messages_only(module):
    assert parts_imported(module) <= PURE | {"message", part(module)}


@pytest.mark.parametrize("module", modules_of("codecs"))
def test_codecs_see_messages_and_nothing_of_what_they_are_about(module):
    assert parts_imported(module) <= {"codecs", "message", "errors", "names"}


@pytest.mark.parametrize("module", [name for name in modules_of("methods") if not name.endswith("__init__")])
def test_a_method_knows_no_transport_no_other_method_and_nothing_above_it(module):
    assert not parts_imported(module) & ({"transports", "methods", "checkpoint", "rehearsal"} | TOP)


@pytest.mark.parametrize("module", [name for name in MODULES if part(name) not in TOP])
def test_nothing_imports_run_experiment_or_the_command_line(module):
    assert not parts_imported(module) & TOP


@pytest.mark.parametrize("module", modules_of("report"))
def test_a_report_needs_no_training_code(module):
    assert parts_imported(module) <= {"report", "errors"}
    assert not [name for name in imported(TREES[module]) if name.split(".")[0] in ("torch", "safetensors")]


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
