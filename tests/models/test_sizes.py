"""What the built-in models weigh, compute and give."""

import pytest
import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from catchment import models

IMAGE = (3, 32, 32)
FEATURES = (16, 32, 32)

EDGES = ["resnet4", "resnet6", "resnet8", "resnet8_basic"]
CUTS = ["resnet4(8,2)", "resnet4(8,2,1)", "resnet6(8,2,1)", "resnet6(8,2,2)", "resnet8(8,2)", "resnet8(8,2,1)"]
WHOLES = ["resnet11", "resnet20", "resnet38", "resnet56", "resnet110", "resnet(1,1,2)"]
HALVES = ["resnet10", "resnet19", "resnet37", "resnet55", "resnet109", "half(2,1,1)"]
OTHERS = ["mlp", "mlp(5)", "cnn", "resnet18"]
FROM_8_PIXELS = EDGES + CUTS + WHOLES + OTHERS


def bottleneck(channels, planes, downsample=False):
    """1x1, 3x3 and 1x1 convolutions without bias, two numbers a channel of batch normalisation."""
    body = channels * planes + 9 * planes**2 + planes * 4 * planes + 2 * (planes + planes + 4 * planes)
    return body + (channels * 4 * planes + 2 * 4 * planes if downsample else 0)


def basic(channels):
    """Two 3x3 convolutions."""
    return 2 * (9 * channels**2 + 2 * channels)


def kept(channels):
    """A bottleneck of 16 inner channels that gives as many as it takes."""
    return 2 * 16 * channels + 9 * 16**2 + 2 * (16 + 16 + channels)


def half(a, b, c, channels=16, classes=10):
    first = bottleneck(channels, 16, True) + (a - 1) * bottleneck(64, 16)
    second = bottleneck(64, 32, True) + (b - 1) * bottleneck(128, 32)
    third = bottleneck(128, 64, True) + (c - 1) * bottleneck(256, 64)
    return first + second + third + 256 * classes + classes


STEM = 3 * 16 * 9 + 2 * 16


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("resnet4", 5_306),
        ("resnet6", 9_978),
        ("resnet8", 10_586),
        ("resnet8_basic", 14_650),
        ("resnet4(8,2)", 3 * 8 * 9 + 2 * 8 + basic(8) + 8 * 10 + 10),
        ("resnet4(8,2)", 1_506),
        ("resnet4(8,2,1)", 1_506),
        ("resnet6(8,2)", 2_690),
        ("resnet6(8,2,2)", 2_690),
        ("resnet8(16,2)", 10_586),
        ("resnet8(8,2)", 3 * 8 * 9 + 2 * 8 + bottleneck(8, 16, True) + bottleneck(64, 16) + 64 * 10 + 10),
        ("resnet8(8,2)", 9_714),
        ("resnet8(8,2,1)", 3 * 8 * 9 + 2 * 8 + kept(8) + bottleneck(8, 16, True) + 64 * 10 + 10),
        ("resnet8(8,2,1)", 7_810),
        ("resnet8(8,2,2)", 3 * 8 * 9 + 2 * 8 + 2 * kept(8) + 8 * 10 + 10),
        ("resnet8(8,2,2)", 5_602),
        ("resnet8(16,4)", 10_586 + 3 * 16 * (7 * 7 - 3 * 3)),  # a kernel of 7x7 in the stem
        ("resnet11", 127_642),
        ("resnet20", 220_378),
        ("resnet38", STEM + half(4, 4, 4)),
        ("resnet56", 591_322),
        ("resnet110", 1_147_738),
        ("resnet(1,1,2)", STEM + half(1, 1, 2)),
        ("resnet( 3, 1 ,2 )", STEM + half(3, 1, 2)),
        ("resnet18", 11_173_962),
        # 3 * 32 * 32 * 64 + 64 and 64 * 10 + 10
        ("mlp", 197_322),
        # 3 * 32 * 32 * 7 + 7 and 7 * 10 + 10
        ("mlp(7)", 21_591),
        # 3 * 9 * 16 + 16, 16 * 9 * 32 + 32 and 32 * 8 * 8 * 10 + 10
        ("cnn", 25_578),
        # 3 * 25 * 6 + 6, 6 * 25 * 16 + 16, 16 * 5 * 5 * 120 + 120, 120 * 84 + 84 and 84 * 10 + 10
        ("lenet", 62_006),
    ],
)
def test_parameters_of_image_models(name, expected):
    assert models.parameters(models.build(name, IMAGE, 10, seed=0)) == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("resnet10", half(1, 1, 1)),
        ("resnet19", 219_914),
        ("resnet37", half(4, 4, 4)),
        ("resnet55", 590_858),
        ("resnet109", 1_147_274),
        ("half(6,6,6)", 590_858),
    ],
)
def test_parameters_of_halves(name, expected):
    assert models.parameters(models.build(name, FEATURES, 10, seed=0)) == expected
    assert models.parameters(models.build(name, (16, 8, 8), 10, seed=0)) == expected
    narrow = models.build(name, (8, 16, 16), 10, seed=0)  # the first block and its shortcut take 8 channels less
    assert models.parameters(narrow) == expected - 8 * (16 + 64)


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        # 64 * 64 + 64 and 64 * 10 + 10
        ("mlp", (1, 8, 8), 4_810),
        # 9 * 16 + 16, 16 * 9 * 32 + 32 and 32 * 2 * 2 * 10 + 10
        ("cnn", (1, 8, 8), 6_090),
        # 784 * 64 + 64 and 64 * 10 + 10
        ("mlp", (1, 28, 28), 50_890),
        # 9 * 16 + 16, 16 * 9 * 32 + 32 and 32 * 7 * 7 * 10 + 10
        ("cnn", (1, 28, 28), 20_490),
        ("cnn(16)", (1, 28, 28), 20_490),
        ("cnn(8)", (1, 28, 28), 9_098),
        ("cnn(32)", (1, 28, 28), 50_186),
        # 25 * 6 + 6, 6 * 25 * 16 + 16, 16 * 4 * 4 * 120 + 120, 120 * 84 + 84 and 84 * 10 + 10
        ("lenet", (1, 28, 28), 44_426),
    ],
)
def test_parameters_of_small_models_on_gray_images(name, shape, expected):
    assert models.parameters(models.build(name, shape, 10, seed=0)) == expected


def test_only_trainable_parameters_count():
    model = models.build("cnn", IMAGE, 10, seed=0)
    model.extractor.requires_grad_(False)
    assert models.parameters(model) == 25_578 - (3 * 9 * 16 + 16)


def test_a_half_takes_the_channels_of_the_features():
    model = models.build("resnet10", (24, 16, 16), 7, seed=0)
    assert models.parameters(model) == half(1, 1, 1, channels=24, classes=7)
    # 64 channels come in and 64 go out, so the first block needs no convolution in its shortcut.
    model = models.build("resnet10", (64, 16, 16), 10, seed=0)
    assert models.parameters(model) == half(1, 1, 1, channels=64) - (64 * 64 + 2 * 64)


@pytest.mark.parametrize(
    ("whole_name", "half_name"),
    [("resnet11", "resnet10"), ("resnet56", "resnet55"), ("resnet(2,1,3)", "half(2,1,3)")],
)
def test_a_whole_model_is_a_stem_and_a_half(whole_name, half_name):
    whole_model = models.build(whole_name, IMAGE, 10, seed=0)
    half_model = models.build(half_name, FEATURES, 10, seed=0)
    assert models.parameters(whole_model) == models.parameters(half_model) + 464
    whole_model.classifier.load_state_dict(half_model.state_dict())
    images = torch.rand(2, *IMAGE)
    assert torch.equal(whole_model(images), half_model(whole_model.extractor(images)))


@pytest.mark.parametrize("name", FROM_8_PIXELS)
@pytest.mark.parametrize(
    ("shape", "classes"),
    [((1, 8, 8), 10), ((1, 28, 28), 10), ((3, 32, 32), 100), ((3, 64, 64), 100), ((3, 24, 40), 2)],
)
def test_features_and_logits_agree_with_forward(name, shape, classes):
    model = models.build(name, shape, classes, seed=0).eval()
    images = torch.rand(1, *shape)
    with torch.no_grad():
        features = model.extractor(images)
        logits = model.classifier(features)
        assert logits.shape == (1, classes)
        assert torch.equal(model(images), logits)
    assert tuple(features.shape[1:]) == models.feature_shape(model, shape)


@pytest.mark.parametrize("shape", [(1, 16, 16), (1, 28, 28), (3, 32, 32), (3, 64, 64), (3, 31, 18)])
def test_lenet_gives_logits(shape):
    assert models.build("lenet", shape, 100, seed=0)(torch.rand(2, *shape)).shape == (2, 100)


@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize(("shape", "classes"), [((16, 8, 8), 10), ((64, 28, 28), 100)])
def test_halves_give_logits(name, shape, classes):
    model = models.build(name, shape, classes, seed=0).eval()
    with torch.no_grad():
        assert model(torch.rand(1, *shape)).shape == (1, classes)
    assert not models.is_split(model)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        *((name, (16, 28, 28)) for name in EDGES + WHOLES),
        *((name, (8, 14, 14)) for name in CUTS),
        ("resnet8(4,3)", (4, 10, 10)),
        ("resnet4(2,4,1)", (2, 7, 7)),
        ("kgf(resnet8(8,2,1),4)", (8, 14, 14)),
        ("resnet18", (64, 28, 28)),
        ("mlp", (64,)),
        ("mlp(5)", (5,)),
        ("cnn", (16, 14, 14)),
        ("lenet", (6, 12, 12)),
    ],
)
def test_feature_shapes(name, expected):
    model = models.build(name, (1, 28, 28), 10, seed=0)
    assert models.feature_shape(model, (1, 28, 28)) == expected


def normalised(model, place, maps, stride=1):
    """The convolution at this place and the normalisation after it, from their weights alone."""
    weights = model.state_dict()
    kernel = weights[f"{place}.weight"]
    maps = functional.conv2d(maps, kernel, stride=stride, padding=kernel.shape[-1] // 2)
    before, _, position = place.rpartition(".")
    after = f"{before}.{int(position) + 1}"
    statistics = (weights[f"{after}.{key}"] for key in ("running_mean", "running_var", "weight", "bias"))
    return functional.batch_norm(maps, *statistics)


def block_by_hand(model, place, maps, convolutions, stride, strided):
    """A residual block written out; `strided` is the position of its convolution that shrinks the maps."""
    out = maps
    for position in range(convolutions):
        out = normalised(model, f"{place}.body.{3 * position}", out, stride if position == strided else 1)
        out = out if position == convolutions - 1 else out.relu()
    if f"{place}.shortcut.0.weight" in model.state_dict():
        maps = normalised(model, f"{place}.shortcut.0", maps, stride)
    return (out + maps).relu()


@pytest.mark.parametrize(
    ("name", "convolutions", "strides", "strided"),
    [
        ("resnet6", 2, [1, 1], 0),
        ("resnet8", 3, [1, 1], 1),
        ("resnet(2,1,2)", 3, [1, 1, 2, 2, 1], 1),
        ("resnet18", 2, [1, 1, 2, 1, 2, 1, 2, 1], 0),
    ],
)
def test_resnets_compute_what_they_should(name, convolutions, strides, strided):
    shape = (3, 12, 16)
    model = models.build(name, shape, 10, seed=0)
    images = torch.rand(4, *shape)
    with torch.no_grad():
        model(images)  # so that the running statistics are not zero and one
        model.eval()
        maps = normalised(model, "extractor.0", images).relu()
        for position, stride in enumerate(strides):
            maps = block_by_hand(model, f"classifier.{position}", maps, convolutions, stride, strided)
        logits = model.classifier[-1](maps.flatten(2).mean(2))
        torch.testing.assert_close(model(images), logits)


@pytest.mark.parametrize(
    ("name", "convolutions", "stride", "depth", "blocks"),
    [("resnet6(4,2,1)", 2, 2, 1, 2), ("resnet8(4,2,1)", 3, 2, 1, 2), ("resnet8(4,4)", 3, 4, 0, 2)],
)
def test_cut_edges_compute_what_they_should(name, convolutions, stride, depth, blocks):
    shape = (3, 12, 16)
    model = models.build(name, shape, 10, seed=0)
    images = torch.rand(4, *shape)
    with torch.no_grad():
        model(images)
        model.eval()
        maps = normalised(model, "extractor.0", images, stride).relu()
        places = [f"extractor.{3 + d}" for d in range(depth)] + [f"classifier.{d}" for d in range(blocks - depth)]
        for place in places[:depth]:
            maps = block_by_hand(model, place, maps, convolutions, 1, 0)
        torch.testing.assert_close(model.extractor(images), maps)
        for place in places[depth:]:
            maps = block_by_hand(model, place, maps, convolutions, 1, 0)
        torch.testing.assert_close(model(images), model.classifier[-1](maps.flatten(2).mean(2)))


@pytest.mark.parametrize("name", [*EDGES, *CUTS, "resnet11", *OTHERS, "lenet", "resnet10"])
def test_every_parameter_is_used(name):
    shape = (1, 16, 16)
    model = models.build(name, shape, 10, seed=0)
    model(torch.rand(4, *shape)).square().sum().backward()
    assert [key for key, p in model.named_parameters() if p.grad is None] == []


def multiply_accumulates(name):
    model = models.build(name, IMAGE, 10, seed=0).eval()
    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        model(torch.zeros(1, *IMAGE))
    return counter.get_total_flops() / 2


def test_multiply_accumulates():
    edge = multiply_accumulates("resnet8")
    assert round(edge / 1e6, 2) == 9.62
    assert round(multiply_accumulates("resnet56") / edge, 2) == 9.07
    assert round(multiply_accumulates("resnet110") / edge, 2) == 17.41
    assert round(multiply_accumulates("resnet8(16,2)") / edge, 2) == 0.25
