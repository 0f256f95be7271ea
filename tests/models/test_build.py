"""Names, seeds, users' own models, and what is said when a model cannot be had."""

import pytest
import torch
from torch import nn

from catchment import models
from catchment.errors import ExperimentError, ModelError

SHAPE = (1, 8, 8)


def weights(name, seed):
    return models.build(name, SHAPE, 10, seed).state_dict()


@pytest.fixture
def own(tmp_path, monkeypatch):
    """Write a module of the user's own and give its name, new in each test, as imports are cached."""

    def write(text):
        name = f"own_models_{tmp_path.name}"
        (tmp_path / f"{name}.py").write_text("from torch import nn\n" + text)
        monkeypatch.syspath_prepend(tmp_path)
        return name

    return write


@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet4", "resnet8", "resnet11", "resnet10", "half(1,2,1)"])
def test_the_seed_fixes_the_weights(name):
    first, again, other = weights(name, 5), weights(name, 5), weights(name, 6)
    assert all(torch.equal(first[key], again[key]) for key in first)
    assert any(not torch.equal(first[key], other[key]) for key in first)


def test_building_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    models.build("resnet8", SHAPE, 10, seed=1)
    assert torch.equal(torch.get_rng_state(), before)


def test_what_was_drawn_before_does_not_matter():
    first = weights("cnn", 3)
    torch.rand(7)
    assert all(torch.equal(value, first[key]) for key, value in weights("cnn", 3).items())


def test_one_seed_gives_every_resnet_the_same_stem():
    stem = weights("resnet8", 2)["extractor.0.weight"]
    for name in ("resnet4", "resnet6", "resnet8_basic", "resnet11", "resnet(1,1,2)", "resnet4(16,2,1)"):
        assert torch.equal(weights(name, 2)["extractor.0.weight"], stem)


@pytest.mark.parametrize("name", ["resnet4", "resnet6", "resnet8"])
def test_an_edge_model_is_a_member_of_its_own_family(name):
    alone, member = weights(name, 2), weights(f"{name}(16,1)", 2)
    assert list(alone) == list(member)
    assert all(torch.equal(alone[key], member[key]) for key in alone)


def test_resnets_start_with_he_normal_convolutions_and_plain_normalisation():
    model = models.build("resnet18", (3, 32, 32), 10, seed=0)
    for layer in model.modules():
        if isinstance(layer, nn.Conv2d):
            assert layer.bias is None
            fan_out = layer.out_channels * layer.kernel_size[0] ** 2
            assert layer.weight.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.1)
            assert (layer.weight.abs() > 2 * (2 / fan_out) ** 0.5).any()  # normal, not uniform
        if isinstance(layer, nn.BatchNorm2d):
            assert (layer.weight == 1).all()
            assert (layer.bias == 0).all()


def test_names_may_have_spaces():
    spaced, plain = weights("  mlp ( 32 ) ", 0), weights("mlp(32)", 0)
    assert spaced["extractor.1.weight"].shape == (32, 64)
    assert all(torch.equal(spaced[key], plain[key]) for key in plain)
    assert models.parameters(models.build(" cnn ", SHAPE, 10, seed=0)) == 6_090


def test_every_listed_name_can_be_built():
    members = {
        "(a,b,c)": "(1,1,1)",
        "(a,b,n)": "(1,1,1)",
        "(h)": "(4)",
        "(c)": "(4)",
        "(c,s,d)": "(4,2,1)",
        "(w)": "(1.0)",
        "(w,b)": "(8,1)",
        "(model)": "(cnn)",
    }
    filled = [next((name.replace(form, own) for form, own in members.items() if form in name), name)
              for name in models.MODELS]  # fmt: skip
    assert {"resnet8", "resnet(1,1,1)", "half(1,1,1)", "mlp(4)", "cnn(4)", "basic(8,1)", "kgf(cnn)"} <= set(filled)
    for name in filled:
        assert isinstance(models.build(name, (16, 32, 32), 10, seed=0), nn.Module)


def test_which_names_are_halves():
    halves = {name for name in models.MODELS if "(" not in name and models.is_half(name)}
    assert halves == {"resnet10", "resnet19", "resnet37", "resnet55", "resnet109"}
    assert models.is_half("half( 1, 2, 3 )")
    assert not models.is_half("resnet(1,2,3)")
    assert not models.is_half("my.own:model")
    assert not models.is_half("nonsense")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("resnt8", 'did you mean "resnet8"?'),
        ("resnet57", 'did you mean "resnet'),
        ("resnets(1,1,2)", 'did you mean "resnet(a,b,c)"?'),
        ("halves(1,1,2)", 'did you mean "half(a,b,c)"?'),
        ("resnet8_basic(3)", 'did you mean "resnet8_basic"?'),
        ("zzz", "known: basic(w,b), cnn, cnn(c), half(a,b,c), lenet, lenet(a,b,n), mlp, mlp(h), mobilenetv2(w),"),
    ],
)
def test_unknown_names(name, hint):
    with pytest.raises(ExperimentError) as caught:
        models.build(name, SHAPE, 10, seed=0)
    assert str(caught.value).startswith(f'unknown model "{name}"; {hint}')


@pytest.mark.parametrize(
    ("name", "form"),
    [
        *((f"resnet{rest}", "resnet(a,b,c)") for rest in ("", "()", "(1,1)", "(1,1,1,1)", "(1,0,1)", "(1,a,1)")),
        *((f"resnet{rest}", "resnet(a,b,c)") for rest in ("(1,-1,1)", "(1,1.5,1)", "(1,1:1)", "(1,,1)")),
        *((f"half{rest}", "half(a,b,c)") for rest in ("", "(2)", "(a,b,c)")),
        *((f"cnn{rest}", "cnn(c)") for rest in ("(0)", "(8,16)")),
        *((f"mlp{rest}", "mlp(h)") for rest in ("()", "(0)", "(-3)", "(x)", "(3,3)")),
    ],
)
def test_bad_numbers(name, form):
    with pytest.raises(ModelError) as caught:
        models.build(name, SHAPE, 10, seed=0)
    assert str(caught.value) == (
        f'model "{name}" should have the form "{form}" with positive whole numbers in the parentheses'
    )


@pytest.mark.parametrize(
    ("name", "form", "most"),
    [
        *(
            (f"resnet8{rest}", "resnet8(c,s,d)", 2)
            for rest in ("(8)", "(8,2,3)", "(8,0)", "()", "(8,2,1,1)", "(8,2,0)")
        ),
        ("resnet6(8,2,3)", "resnet6(c,s,d)", 2),
        ("resnet4(8,2,2)", "resnet4(c,s,d)", 1),
    ],
)
def test_a_cut_lies_within_the_blocks(name, form, most):
    with pytest.raises(ModelError) as caught:
        models.build(name, SHAPE, 10, seed=0)
    assert str(caught.value) == (
        f'model "{name}" should have the form "{form}" with positive whole numbers in the parentheses; d is at most '
        f"{most} and may be left out"
    )


@pytest.mark.parametrize(
    ("name", "smallest"),
    [("lenet", 16), ("resnet18", 8), ("cnn", 4), ("resnet11", 4), ("resnet8", 1), ("mlp", 1)],
)
def test_the_smallest_image_works(name, smallest):
    shape = (3, smallest, smallest)
    assert models.build(name, shape, 10, seed=0)(torch.rand(2, *shape)).shape == (2, 10)


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        ("lenet", (1, 8, 8), 'model "lenet" takes images from 16x16 upward, not 8x8'),
        ("lenet", (3, 15, 16), 'model "lenet" takes images from 16x16 upward, not 15x16'),
        ("cnn", (1, 8, 3), 'model "cnn" takes images from 4x4 upward, not 8x3'),
        ("resnet18", (3, 7, 7), 'model "resnet18" takes images from 8x8 upward, not 7x7'),
        ("resnet(1,1,2)", (3, 3, 3), 'model "resnet(1,1,2)" takes images from 4x4 upward, not 3x3'),
        ("resnet55", (16, 2, 2), 'model "resnet55" takes features from 4x4 upward, not 2x2'),
        ("resnet55", (64,), 'model "resnet55" takes features of channels x height x width, not of shape 64'),
        ("cnn", (8, 8), 'model "cnn" takes images of channels x height x width, not of shape 8x8'),
    ],
)
def test_inputs_that_do_not_fit(name, shape, message):
    with pytest.raises(ModelError) as caught:
        models.build(name, shape, 10, seed=0)
    assert str(caught.value) == message


@pytest.mark.parametrize(("shape", "classes"), [((1, 0, 8), 10), ((), 10), ((1, 8, 8), 0), ((-1, 8, 8), 10)])
def test_nothing_to_build_for(shape, classes):
    with pytest.raises(ModelError) as caught:
        models.build("cnn", shape, classes, seed=0)
    assert str(caught.value) == (
        'model "cnn" needs a shape of positive numbers and at least one class, '
        f"not the shape {shape} and {classes} classes"
    )


def test_more_weights_than_memory():
    with pytest.raises(ModelError, match=r'^model "mlp\(9+\)" could not be built for 1x8x8 and 10 classes: '):
        models.build("mlp(99999999999999999)", SHAPE, 10, seed=0)


def test_a_function_of_the_users_own(own):
    module = own(
        "def plain(shape, classes):\n"
        "    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))\n"
        "def convolutional(channels, size, classes, n=3):\n"
        "    return nn.Sequential(nn.Conv2d(channels, n, size), nn.Flatten(), nn.Linear(n, classes))\n"
        "class Net(nn.Linear):\n"
        "    def __init__(self, **given):\n"
        "        super().__init__(given['size'], given['classes'])\n"
    )
    for name in ("plain", "convolutional"):
        model = models.build(f"{module}:{name}", SHAPE, 4, seed=0)
        assert model(torch.rand(2, *SHAPE)).shape == (2, 4)
        assert not models.is_split(model)
    net = models.build(f"{module}:Net", SHAPE, 4, seed=0)
    assert net.weight.shape == (4, 8)
    first, again, other = (models.build(f"{module}:plain", SHAPE, 4, seed)[1].weight for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_function_may_take_features_that_are_vectors(own):
    module = own("def server(channels, classes):\n    return nn.Linear(channels, classes)\n")
    assert models.build(f"{module}:server", (64,), 10, seed=0).in_features == 64


@pytest.mark.parametrize(
    ("attribute", "message"),
    [
        ("nothing", "should return a torch.nn.Module, but returned an object of type NoneType"),
        ("pair", "should return a torch.nn.Module, but returned an object of type list"),
        (
            "made",
            "should be a function or class that makes a torch.nn.Module, but is an object of type Linear",
        ),
        (
            "number",
            "should be a function or class that makes a torch.nn.Module, but is an object of type int",
        ),
        ("lazy", "has lazy layers, whose weights no seed can fix: give their sizes"),
        ("failing", "could not be built for 1x8x8 and 10 classes: KeyError: 'depth'"),
        (
            "asking",
            "could not be built for 1x8x8 and 10 classes: "
            "TypeError: asking() missing 1 required positional argument: 'depth'",
        ),
    ],
)
def test_what_cannot_be_used(own, attribute, message):
    module = own(
        "def nothing(): pass\n"
        "def pair(): return [nn.Identity(), nn.Identity()]\n"
        "def lazy(): return nn.LazyLinear(3)\n"
        "def failing(shape): return {}['depth']\n"
        "def asking(depth): return nn.Identity()\n"
        "made = nn.Linear(2, 2)\n"
        "number = 3\n"
    )
    name = f"{module}:{attribute}"
    with pytest.raises(ModelError) as caught:
        models.build(name, SHAPE, 10, seed=0)
    assert str(caught.value) == f'model "{name}" {message}'


def test_an_error_of_ours_in_the_users_function_passes_unchanged(own):
    module = own(
        "from catchment import models\ndef wrapped(shape, classes): return models.build('lenet', shape, classes, 0)\n"
    )
    with pytest.raises(ModelError, match=r'^model "lenet" takes images from 16x16 upward, not 8x8$'):
        models.build(f"{module}:wrapped", SHAPE, 10, seed=0)


def test_a_failed_build_leaves_the_global_generator_alone(own):
    module = own("def failing():\n    nn.Linear(3, 3)\n    raise ValueError\n")
    before = torch.get_rng_state()
    with pytest.raises(ModelError):
        models.build(f"{module}:failing", SHAPE, 10, seed=0)
    assert torch.equal(torch.get_rng_state(), before)


def test_modules_and_functions_that_do_not_exist(own):
    module = own("def network(): pass\n")
    with pytest.raises(ExperimentError, match='there is no module "no_such_module_anywhere"'):
        models.build("no_such_module_anywhere:network", SHAPE, 10, seed=0)
    with pytest.raises(ExperimentError, match='has no "netwrk"; did you mean "network"'):
        models.build(f"{module}:netwrk", SHAPE, 10, seed=0)
