"""Names in experiment files: built-ins, users' own, and what is said when there is no such thing."""

import pytest

from catchment.errors import ExperimentError
from catchment.names import call_with_known, check_slug, did_you_mean, resolve

BUILTIN = {"adam": 1, "sgd": 2, "sqrt": "math:sqrt"}


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Write a module of the user's own and give its name, new in each test, as imports are cached."""

    def write(text, name=f"own_{tmp_path.name}"):
        (tmp_path / f"{name}.py").write_text(text)
        monkeypatch.syspath_prepend(tmp_path)
        return name

    return write


def error_of(name, builtin=BUILTIN):
    with pytest.raises(ExperimentError) as caught:
        resolve("thing", name, builtin)
    return str(caught.value)


@pytest.mark.parametrize(
    ("given", "known", "expected"),
    [
        ("admm", ["adam", "sgd"], 'did you mean "adam"?'),
        ("zzz", ["sgd", "adam"], "known: adam, sgd"),
        ("zzz", [], "known: none"),
        ("", ["adam"], "known: adam"),
    ],
)
def test_the_nearest_name_or_all_of_them(given, known, expected):
    assert did_you_mean(given, known) == expected


def test_a_builtin_is_an_object_or_the_place_of_one():
    import math

    assert resolve("thing", "adam", BUILTIN) == 1
    assert resolve("thing", "sqrt", BUILTIN) is math.sqrt


def test_a_name_with_a_colon_is_an_attribute_of_a_module(own):
    module = own("answer = 42")
    assert resolve("thing", f"{module}:answer", BUILTIN) == 42


def test_an_unknown_name_is_compared_with_the_builtins():
    assert error_of("adm") == 'unknown thing "adm"; did you mean "adam"?'
    assert error_of("zzz") == 'unknown thing "zzz"; known: adam, sgd, sqrt'


@pytest.mark.parametrize("name", ["no_such_module", "no_such_module.below"])
def test_a_missing_module(name):
    assert error_of(f"{name}:x") == (
        f'thing "{name}:x": there is no module "{name}" beside the experiment file or on the Python path'
    )


def test_a_missing_part_of_a_package(own):
    module = own("")
    assert f'there is no module "{module}.below"' in error_of(f"{module}.below:x")


def test_a_module_that_needs_a_missing_one_is_there(own):
    module = own("import no_such_module")
    assert error_of(f"{module}:x") == (
        f"thing \"{module}:x\": importing {module} failed: No module named 'no_such_module'"
    )


def test_a_module_that_needs_a_missing_one_whose_name_begins_alike_is_there(own):
    module = own("import no_such", name="no_such_but_here")
    assert error_of(f"{module}:x") == f"thing \"{module}:x\": importing {module} failed: No module named 'no_such'"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("def", "SyntaxError: invalid syntax"),
        ("from math import nonsense", "ImportError: cannot import name 'nonsense'"),
    ],
)
def test_a_module_that_cannot_be_imported_says_why(own, text, why):
    module = own(text)
    assert error_of(f"{module}:x").startswith(f'thing "{module}:x": importing {module} failed: {why}')


def test_a_missing_attribute_is_compared_with_the_modules_names(own):
    module = own("answer = 42")
    assert error_of(f"{module}:anser") == (
        f'thing "{module}:anser": module {module} has no "anser"; did you mean "answer"?'
    )


def test_only_the_modules_own_names_are_listed(own):
    module = own("answer = 42\n_private = 1")
    assert error_of(f"{module}:zzz").endswith('has no "zzz"; known: answer')


def test_a_function_gets_what_it_names():
    assert call_with_known(lambda a, c=0: (a, c), a=1, b=2) == (1, 0)
    assert call_with_known(lambda: "nothing", a=1) == "nothing"
    assert call_with_known(lambda **rest: rest, a=1, b=2) == {"a": 1, "b": 2}


@pytest.mark.parametrize("name", ["fedavg-digits", "2", "_x", "a.b", "漢字"])
def test_slugs(name):
    check_slug(name)


@pytest.mark.parametrize("name", ["../../x", "", ".", "..", "/x", "a/b", "a\\b", "two words", "-rf", "a\x1b[2J", "x\n"])
def test_what_would_not_be_a_file_of_its_own_is_no_slug(name):
    with pytest.raises(ExperimentError, match=r"files are called by it: letters, digits, _, - and \. are expected"):
        check_slug(name)
