"""Models for phones and generators: what they weigh, compute and give."""

import pytest
import torch
from torch.nn import functional

from catchment import models
from catchment.errors import ExperimentError, ModelError
from catchment.models.mobile import shuffled

IMAGE = (3, 32, 32)


def normed(inputs, outputs, area=1):
    """Weights of a convolution without bias, and two numbers a channel of its normalisation."""
    return inputs * outputs * area + 2 * outputs


def shufflenet(stages):
    total, channels = normed(3, 24, 9), 24
    for width, blocks in zip(stages, (3, 7, 3)):
        half = width // 2
        left = normed(1, channels, 9) + normed(channels, half)
        total += left + normed(channels, half) + normed(1, half, 9) + normed(half, half)
        total += blocks * (normed(half, half) + normed(1, half, 9) + normed(half, half))
        channels = width
    return total + normed(channels, 1024) + 1024 * 10 + 10


def mobilenet(stem, stages):
    total, channels = normed(3, stem, 9), stem
    table = ((1, 1, 1), (6, 2, 1), (6, 3, 2), (6, 4, 2), (6, 3, 1), (6, 3, 2), (6, 1, 1))
    for width, (expansion, blocks, stride) in zip(stages, table):
        for block in range(blocks):
            inner = expansion * channels
            total += normed(channels, inner) + normed(1, inner, 9) + normed(inner, width)
            if channels != width and (block > 0 or stride == 1):
                total += normed(channels, width)
            channels = width
    return total + normed(channels, 1280) + 1280 * 10 + 10


@pytest.mark.parametrize(
    ("name", "expected", "written"),
    [
        ("shufflenetv2(0.5)", shufflenet((48, 96, 192)), 352_042),
        ("shufflenetv2(1.0)", shufflenet((116, 232, 464)), 1_263_854),
        ("shufflenetv2(1)", shufflenet((116, 232, 464)), 1_263_854),
        # widths times 0.6 and 0.8, to the nearest multiple of 8
        ("mobilenetv2(0.6)", mobilenet(24, (16, 16, 24, 40, 56, 96, 192)), 971_018),
        ("mobilenetv2(0.8)", mobilenet(24, (16, 24, 24, 48, 80, 128, 256)), 1_563_050),
        ("mobilenetv2(1.0)", mobilenet(32, (16, 24, 32, 64, 96, 160, 320)), 2_296_922),
    ],
)
def test_parameters(name, expected, written):
    assert models.parameters(models.build(name, IMAGE, 10, seed=0)) == expected == written


@pytest.mark.parametrize("name", ["shufflenetv2(0.5)", "mobilenetv2(0.6)"])
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 32, 32), (1, 28, 28)])
def test_they_give_logits_and_use_every_weight(name, shape):
    model = models.build(name, shape, 7, seed=0)
    logits = model(torch.rand(2, *shape))
    assert logits.shape == (2, 7)
    logits.square().sum().backward()
    assert [key for key, p in model.named_parameters() if p.grad is None] == []
    assert models.feature_shape(model, shape)[1:] == shape[1:]  # the stem keeps the size


def test_maps_are_halved_three_times():
    for name, channels in (("shufflenetv2(0.5)", 1024), ("mobilenetv2(0.8)", 1280)):
        model = models.build(name, IMAGE, 10, seed=0).eval()
        maps = model.extractor(torch.rand(1, *IMAGE))
        for part in model.classifier[:-2]:
            maps = part(maps)
        assert maps.shape == (1, channels, 4, 4)


def test_channels_are_shuffled_in_turn():
    maps = torch.arange(6.0).reshape(1, 6, 1, 1)
    assert shuffled(maps).flatten().tolist() == [0, 3, 1, 4, 2, 5]


def test_half_of_the_channels_pass_a_shuffle_block_untouched():
    block = models.build("shufflenetv2(0.5)", IMAGE, 10, seed=0).classifier[1].eval()
    maps = torch.rand(2, 48, 4, 4)
    with torch.no_grad():
        assert torch.equal(block(maps)[:, ::2], maps[:, :24])


def test_an_inverted_residual_adds_its_input_only_where_the_size_stays():
    model = models.build("mobilenetv2(1.0)", IMAGE, 10, seed=0).eval()
    blocks = model.classifier
    maps = torch.rand(2, 32, 8, 8)
    with torch.no_grad():
        first = blocks[0]  # 32 -> 16 channels: a convolution in the shortcut
        torch.testing.assert_close(first(maps), first.body(maps) + first.shortcut(maps))
        maps = first(maps)
        maps = blocks[1](maps)  # 16 -> 24
        same = blocks[2]
        torch.testing.assert_close(same(maps), same.body(maps) + maps)
        down = blocks[3]
        assert down.shortcut is None
        assert torch.equal(down(same(maps)), down.body(same(maps)))


@pytest.mark.parametrize("name", ["shufflenetv2(0.7)", "mobilenetv2(2)", "mobilenetv2", "shufflenetv2(a)"])
def test_widths_that_there_are_not(name):
    with pytest.raises(ModelError, match="with w one of"):
        models.build(name, IMAGE, 10, seed=0)


# ---- LeNets ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("lenet(6,16,3)", (1, 28, 28), 44_426),
        # 25 * 12 + 12, 12 * 25 * 32 + 32, 512 * 120 + 120, 120 * 84 + 84 and 84 * 10 + 10
        ("lenet(12,32,3)", (1, 28, 28), 82_518),
        # 25 * 8 + 8, 8 * 25 * 16 + 16, 256 * 120 + 120 and 120 * 10 + 10
        ("lenet(8,16,2)", (1, 28, 28), 35_474),
        # 3 * 25 * 8 + 8, 8 * 25 * 16 + 16, 400 * 120 + 120 and 120 * 10 + 10
        ("lenet(8,16,2)", (3, 32, 32), 53_154),
        # 25 * 4 + 4, 4 * 25 * 4 + 4 and 64 * 10 + 10
        ("lenet(4,4,1)", (1, 28, 28), 1_158),
    ],
)
def test_parameters_of_lenets(name, shape, expected):
    assert models.parameters(models.build(name, shape, 10, seed=0)) == expected


def test_lenet_is_one_of_its_family():
    one, other = (models.build(name, (1, 28, 28), 10, seed=3).state_dict() for name in ("lenet", "lenet(6,16,3)"))
    assert all(torch.equal(one[key], other[key]) for key in one)
    with pytest.raises(ModelError, match=r"lenet\(6,16,4\).* has at most 3 linear layers"):
        models.build("lenet(6,16,4)", (1, 28, 28), 10, seed=0)


# ---- generators --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        # a linear layer of 101 numbers for each of 128 x quarter x quarter, then 128 -> 128 -> 64 -> image
        ((1, 8, 8), 101 * 128 * 4 + 256 + 147_456 + 256 + 73_728 + 128 + 577),
        ((1, 28, 28), 855_873),
        ((3, 32, 32), 1_050_947),
    ],
)
def test_parameters_of_the_generator(shape, expected):
    assert models.parameters(models.build_generator("generator", shape, 100, 64, seed=0)) == expected


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 32, 32), (3, 30, 17)])
def test_generated_images_are_normalised(shape):
    generator = models.build_generator("generator", shape, 12, 4, seed=0)
    images = generator(torch.randn(64, 12, generator=torch.Generator().manual_seed(0)))
    assert images.shape == (64, *shape)
    torch.testing.assert_close(images.mean((0, 2, 3)), torch.zeros(shape[0]), atol=1e-5, rtol=0)
    torch.testing.assert_close(images.var((0, 2, 3)), torch.ones(shape[0]), atol=1e-2, rtol=0)


def test_a_seed_makes_a_generator():
    one, same, other = (models.build_generator("generator", (1, 8, 8), 5, 4, seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert any(not torch.equal(one[key], other[key]) for key in one)


def test_an_unknown_generator_is_named():
    with pytest.raises(ExperimentError, match='unknown generator "generater"; did you mean "generator"'):
        models.build_generator("generater", (1, 8, 8), 5, 4, seed=0)


# ---- first weights -----------------------------------------------------------------------------------------------


def test_glorot_weights_are_uniform_and_biases_zero():
    model = models.build("cnn", (1, 8, 8), 10, seed=0, initial="glorot")
    for layer, fans in ((model.extractor[0], 9 + 16 * 9), (model.classifier[0], 16 * 9 + 32 * 9)):
        bound = (6 / fans) ** 0.5
        assert 0.95 * bound < layer.weight.abs().max() <= bound
        assert layer.bias.abs().max() == 0
    own = models.build("cnn", (1, 8, 8), 10, seed=0)
    assert own.extractor[0].bias.abs().max() > 0
    again = models.build("cnn", (1, 8, 8), 10, seed=0, initial="glorot")
    assert torch.equal(model.classifier[-1].weight, again.classifier[-1].weight)


def test_glorot_leaves_normalisation_alone():
    model = models.build("resnet4", (1, 8, 8), 10, seed=0, initial="glorot")
    maps = functional.batch_norm(torch.rand(4, 16, 2, 2), torch.zeros(16), torch.ones(16))
    torch.testing.assert_close(model.extractor[1].eval()(maps), maps, atol=1e-4, rtol=1e-4)
