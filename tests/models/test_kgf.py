"""Base kernels and what they generate, by hand; sizes of the paper; the same kernels wherever a model is built."""

import copy
import io

import pytest
import torch
from torch import nn

from catchment import models
from catchment.errors import ModelError
from catchment.models.kgf import ALPHA, BETA, KernelGeneration, with_base_kernels

SHAPE = (3, 32, 32)


def one_by_one(base: int, **switches) -> KernelGeneration:
    """A 1x1 convolution of five kernels with base kernels 0.5, -2 and so on, alpha 0.1 and beta 2 and 3."""
    whole = nn.Conv2d(1, 5, 1, bias=False)
    with torch.no_grad():
        whole.weight.copy_(torch.tensor([0.5, -2.0, 0.0, 7.0, 8.0]).view(5, 1, 1, 1))
    layer = with_base_kernels(whole, base, **switches)
    assert isinstance(layer, KernelGeneration)
    layer.alpha.fill_(0.1)
    layer.beta.copy_(torch.tensor([2.0, 3.0, 3.0])[: 5 - base].view(-1, 1, 1, 1))
    return layer


def test_equation_2_worked_by_hand():
    # Copies of (0.5, -2) in turn: 0.5, -2, 0.5. |w|^beta + 0.1 = 0.35, 8.1, 0.225, with the signs of w.
    assert one_by_one(2).kernels().view(-1).tolist() == pytest.approx([0.5, -2, 0.35, -8.1, 0.225])


@pytest.mark.parametrize(
    ("switches", "generated"),
    [({"sign": False}, [0.35, 8.1, 0.225]), ({"bias": False}, [0.25, -8, 0.125])],
)
def test_the_ablations_leave_their_part_out(switches, generated):
    assert one_by_one(2, **switches).kernels().view(-1).tolist() == pytest.approx([0.5, -2, *generated])


def test_zero_generates_zero_and_has_a_finite_gradient():
    layer = one_by_one(3)
    with torch.no_grad():
        layer.weight.zero_()
    kernels = layer.kernels()
    assert kernels.view(-1).tolist() == [0] * 5  # sign(0) is 0
    kernels.sum().backward()
    assert layer.weight.grad.view(-1).tolist() == [1, 1, 1]


def test_gradients_reach_base_kernels_through_both_paths():
    # d/dw sign(w) |w|^beta = beta |w|^(beta - 1): 2 * 0.5 and 3 * 0.25 for the copies of 0.5, 3 * 4 for that of -2.
    layer = one_by_one(2)
    layer.kernels().sum().backward()
    assert layer.weight.grad.view(-1).tolist() == pytest.approx([1 + 1 + 0.75, 1 + 12])


def test_the_convolution_is_that_of_its_kernels():
    whole = nn.Conv2d(4, 12, 3, stride=2, padding=1, groups=2, padding_mode="reflect")
    layer = with_base_kernels(copy.deepcopy(whole), 5)
    same = copy.deepcopy(whole)
    with torch.no_grad():
        same.weight.copy_(layer.kernels())
    maps = torch.randn(2, 4, 8, 8)
    assert torch.equal(layer(maps), same(maps))
    assert torch.equal(layer.kernels()[:5], whole.weight[:5])
    assert torch.equal(layer.bias, whole.bias)


def test_random_numbers_are_in_the_ranges_of_the_paper():
    layer = with_base_kernels(nn.Conv2d(16, 256, 3), 16)
    for drawn, (low, high) in ((layer.alpha, ALPHA), (layer.beta, BETA)):
        assert drawn.shape == (240, 16, 3, 3)
        assert low <= float(drawn.min()) < low + 0.01 * (high - low)
        assert high - 0.01 * (high - low) < float(drawn.max()) <= high


def test_alpha_over_decades_has_a_quarter_of_its_numbers_in_each():
    """0.00001 to 0.1 are four decades; uniform numbers are below 0.01 in a tenth of all cases."""
    uniform, decades = (with_base_kernels(nn.Conv2d(16, 256, 3), 16, decades=switch) for switch in (False, True))
    assert torch.equal(uniform.beta, decades.beta)
    for low in (1e-5, 1e-4, 1e-3, 1e-2):
        share = float(((decades.alpha >= low) & (decades.alpha < 10 * low)).float().mean())
        assert share == pytest.approx(0.25, abs=0.01)
    # The same random number u: low + (high - low) u, and low (high / low)^u.
    u = (uniform.alpha.double() - ALPHA[0]) / (ALPHA[1] - ALPHA[0])
    assert torch.allclose(decades.alpha.double(), ALPHA[0] * 10 ** (4 * u), rtol=1e-4)


def test_another_number_in_draw_is_another_alpha_and_beta_and_the_same_number_the_same():
    once, layer, other = (with_base_kernels(copy.deepcopy(CONVOLUTION), 4, redraw=r) for r in (False, True, True))
    assert "draw" not in once.state_dict()
    first = layer.kernels().detach()
    assert torch.equal(first, once.kernels())  # draw 0 is that of a model that never draws again
    layer.draw.fill_(7)
    seventh = layer.kernels().detach()
    assert torch.equal(seventh[:4], first[:4])
    assert not torch.equal(seventh[4:], first[4:])
    other.load_state_dict(layer.state_dict())  # on another machine: the number is all that it needs
    assert torch.equal(other.kernels(), seventh)
    layer.draw.fill_(0)
    assert torch.equal(layer.kernels(), first)


# ---- whole models -----------------------------------------------------------------------------------------------


def test_resnet18_sends_510778_of_11173962_parameters():
    whole, small = (models.build(name, SHAPE, 10, seed=0) for name in ("resnet18", "kgf(resnet18)"))
    assert (models.parameters(whole), models.parameters(small)) == (11_173_962, 510_778)
    assert round(100 * (1 - 510_778 / 11_173_962), 2) == 95.43
    state = small.state_dict()
    assert sum(tensor.numel() for tensor in state.values()) == 510_778 + 2 * 4_800 + 20  # statistics and counters
    assert state.keys() == whole.state_dict().keys()


def all_kernels(model: nn.Module) -> list[torch.Tensor]:
    return [part.kernels() for part in model.modules() if isinstance(part, KernelGeneration)]


def test_a_saved_model_is_the_small_one_and_regenerates_itself():
    trained, other = (models.build("kgf(basic(8,1),4)", SHAPE, 10, seed) for seed in (0, 1))
    assert not torch.equal(all_kernels(trained)[0], all_kernels(other)[0])
    file = io.BytesIO()
    torch.save(trained.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file))
    assert len(all_kernels(trained)) == 12
    assert all(map(torch.equal, all_kernels(trained), all_kernels(other)))
    images = torch.randn(2, *SHAPE)
    assert torch.equal(trained.eval()(images), other.eval()(images))


def test_layers_draw_numbers_of_their_own():
    model = nn.Sequential(nn.Conv2d(3, 9, 3), nn.Conv2d(9, 9, 3), nn.Conv2d(9, 9, 3))
    with_base_kernels(model, 4)
    assert not torch.equal(model[1].alpha, model[2].alpha)
    assert not torch.equal(model[1].alpha, model[1].beta)


def test_another_seed_generates_other_kernels():
    one, two = (with_base_kernels(copy.deepcopy(CONVOLUTION), 4, seed=seed) for seed in (0, 1))
    assert torch.equal(one.weight, two.weight)
    assert not torch.equal(one.kernels(), two.kernels())


CONVOLUTION = nn.Conv2d(3, 9, 3)


def test_small_convolutions_other_layers_and_other_classes_stay():
    class Own(nn.Conv2d):
        pass

    shared = nn.Conv2d(8, 8, 1)
    model = nn.ModuleDict(
        {"small": nn.Conv2d(3, 4, 1), "own": Own(3, 9, 1), "norm": nn.BatchNorm2d(9), "a": shared, "b": shared}
    )
    before = dict(model.items())
    with_base_kernels(model, 4)
    assert all(model[name] is before[name] for name in ("small", "own", "norm"))
    assert isinstance(model["a"], KernelGeneration)
    assert model["a"] is model["b"]


def test_a_model_without_anything_to_generate_is_refused():
    with pytest.raises(
        ModelError, match=r"nothing to generate: the model has no convolution .* of more than 16 kernels"
    ):
        models.build("kgf(resnet8_basic)", SHAPE, 10, seed=0)
    with pytest.raises(ModelError, match="0 base kernels are given; at least 1"):
        with_base_kernels(nn.Conv2d(3, 9, 3), 0)


# ---- names ------------------------------------------------------------------------------------------------------


STEM, HEAD = 16 * 27 + 2 * 16, 256 * 10 + 10
STAGES = [  # 1x1, 3x3, 1x1 and shortcut of 16 kernels each, and ten times the planes of normalisation twice
    16 * (channels + 9 * planes + planes + channels) + 2 * 10 * planes
    for channels, planes in ((16, 16), (64, 32), (128, 64))
]


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("kgf(cnn,8)", 8 * 27 + 16 + 8 * 144 + 32 + 2048 * 10 + 10),
        (" kgf( resnet(1,1,1) , 16 , no-sign , no-bias ) ", STEM + sum(STAGES) + HEAD),
    ],
)
def test_names(name, parameters):
    assert models.parameters(models.build(name, SHAPE, 10, seed=0)) == parameters


def test_a_half_stays_a_half():
    assert models.is_half("kgf(resnet19,8)")
    assert not models.is_half("kgf(resnet20,8)")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        (
            "kgf(cnn,4,decades,no-bias)",
            "has decades, which says how alpha is drawn, and no-bias, which leaves alpha out",
        ),
        (
            "kgf(cnn,0)",
            'has "0" after the name of a model; a number of base kernels, no-sign, no-bias, decades or redraw',
        ),
        ("kgf(cnn,nosign)", 'has "nosign" after the name'),
        ("kgf()", r'should have the form "kgf\(NAME\)"'),
        ("kgf(kgf(cnn))", "with an ordinary model"),
    ],
)
def test_names_that_make_no_sense(name, reason):
    with pytest.raises(ModelError, match=reason):
        models.build(name, SHAPE, 10, seed=0)
