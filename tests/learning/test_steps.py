"""Declared losses, worked by hand: what they say of themselves, what they refuse, and the loop that minimises them."""

import importlib
import math
import pkgutil

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad
from torch.fx.experimental.proxy_tensor import make_fx

from catchment import methods, models
from catchment.data import Batch
from catchment.errors import Diverged, ProtocolError
from catchment.learning import losses
from catchment.learning.steps import OF_A_STEP, LossFunction, PerSample, fit, loss_function
from catchment.learning.training import load_weights, tensors_of


@loss_function
def squared(outputs, labels):
    """Of a regression by hand: `labels` are numbers."""
    return ((outputs[:, 0] - labels) ** 2).mean()


@loss_function
def everything(outputs, labels, weights, criterion, teacher, anchor=None, *, alpha, beta=0.0):
    """Takes all that a loss can take."""
    value = criterion(outputs[:, 0], labels) + alpha * (outputs - teacher).square().mean()
    return value if anchor is None else value + sum((w - anchor[n]).square().sum() for n, w in weights.items())


@loss_function
def constant(outputs, *, value):
    """A number that has a gradient."""
    return outputs.sum() * 0 + value


def batch(images, targets, ids=None):
    ids = range(len(targets)) if ids is None else ids
    return Batch(torch.tensor(images), torch.tensor(targets), torch.tensor(list(ids)))


def line(weight=1.0, bias=0.0):
    model = nn.Linear(1, 1)
    load_weights(tensors_of(model), {"weight": torch.tensor([[weight]]), "bias": torch.tensor([bias])}, "line")
    return model


def sgd(model, lr=0.25):
    return torch.optim.SGD(model.parameters(), lr=lr)


# ---- declarations -----------------------------------------------------------------------------------------------


def test_a_loss_says_what_it_takes():
    assert everything.name == f"{__name__}:everything"
    assert everything.inputs == ("outputs", "labels", "weights", "criterion", "teacher", "anchor")
    assert everything.scalars == ("alpha", "beta")
    assert everything.optional == {"anchor", "beta"}
    assert everything.__doc__ == "Takes all that a loss can take."


def test_a_loss_that_could_see_more_than_it_is_given_is_refused():
    with pytest.raises(ProtocolError, match='loss "inner" is made inside another function'):

        @loss_function
        def inner(outputs):
            return outputs.mean()

    with pytest.raises(ProtocolError, match="is made inside another function"):
        loss_function(lambda outputs: outputs.mean())


def any_number(outputs, *rest):
    """A loss whose inputs have no names."""


def without_outputs(labels, outputs):
    """A loss that begins with something else."""


def test_a_loss_whose_inputs_cannot_be_given_is_refused():
    with pytest.raises(ProtocolError, match=r'loss "any_number" takes \*rest; inputs by name are expected'):
        loss_function(any_number)
    with pytest.raises(ProtocolError, match='loss "without_outputs" takes labels, outputs; outputs are expected first'):
        loss_function(without_outputs)


def test_what_is_unknown_or_missing_is_named():
    with pytest.raises(ProtocolError) as caught:
        fit(everything, line(), sgd(line()), [], teacher=PerSample(torch.zeros(1, 1)), alpha=1.0, gamma=1.0)
    assert str(caught.value) == 'loss "everything" takes teacher, anchor, alpha, beta, and gamma was given'
    with pytest.raises(ProtocolError) as caught:
        fit(everything, line(), sgd(line()), [], beta=1.0)
    assert str(caught.value) == 'loss "everything" takes teacher, anchor, alpha, beta, and teacher, alpha is missing'
    with pytest.raises(ProtocolError, match='loss "squared" takes nothing else, and alpha was given'):
        fit(squared, line(), sgd(line()), [], alpha=1.0)


def declared():
    """Every loss that is declared in the package."""
    modules = [
        losses,
        *(importlib.import_module(f"{methods.__name__}.{m.name}") for m in pkgutil.iter_modules(methods.__path__)),
    ]
    found = {v.name: v for module in modules for v in vars(module).values() if isinstance(v, LossFunction)}
    return [found[name] for name in sorted(found)]


@pytest.mark.parametrize("given", ["all that it takes", "what it must have"])
@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet4"])
@pytest.mark.parametrize("loss", declared(), ids=lambda loss: loss.name)
def test_every_loss_is_a_pure_function_that_can_be_captured(loss, name, given):
    """Its gradient is a graph of its inputs: no tensor from elsewhere, no branch on a number."""
    model, images = models.build(name, (3, 32, 32), 5, seed=0).eval(), torch.rand(4, 3, 32, 32)
    state = dict(model.named_parameters()), dict(model.named_buffers())
    rows = {
        "labels": torch.arange(4),
        "distilled": torch.tensor([True, False, True, True]),
        "anchor": {n: torch.zeros_like(w) for n, w in state[0].items()},
        "correction": {n: torch.ones_like(w) for n, w in state[0].items()},
    }
    wanted = [
        n for n in loss.inputs if n not in OF_A_STEP[:1] and (given == "all that it takes" or n not in loss.optional)
    ]
    inputs = {n: rows.get(n, torch.rand(4, 5)) for n in wanted if n not in OF_A_STEP or n == "labels"}
    scalars = {n: torch.tensor(0.5) for n in loss.scalars}

    def value(parameters, buffers, images, inputs, scalars):
        fixed = {"weights": parameters, "criterion": nn.functional.cross_entropy}
        fixed = {name: fixed[name] for name in fixed if name in wanted}
        return loss(functional_call(model, (parameters, buffers), (images,)), **inputs, **scalars, **fixed)

    graph = make_fx(grad(value), tracing_mode="fake")(*state, images, inputs, scalars)
    assert [node.target for node in graph.graph.nodes if node.op == "get_attr"] == []
    torch.testing.assert_close(graph(*state, images, inputs, scalars), grad(value)(*state, images, inputs, scalars))


# ---- the rows of samples ----------------------------------------------------------------------------------------


def test_rows_are_found_by_ids_or_are_numbered():
    values = torch.tensor([[1.0], [2.0], [3.0]])
    assert PerSample(values, torch.tensor([2, 5, 9])).of(torch.tensor([9, 2])).tolist() == [[3.0], [1.0]]
    assert PerSample(values).of(torch.tensor([2, 0])).tolist() == [[3.0], [1.0]]


@pytest.mark.parametrize("wanted", [3, 10])
def test_a_sample_without_a_row_never_gets_that_of_another(wanted):
    rows = PerSample(torch.zeros(3, 1), torch.tensor([2, 5, 9]))
    with pytest.raises(ProtocolError, match=f"sample {wanted} of a batch has no row among those of 3 samples"):
        rows.of(torch.tensor([5, wanted]))


# ---- fit --------------------------------------------------------------------------------------------------------


def test_two_steps_of_gradient_descent_by_hand():
    """y = w x + b from w = 1, b = 0 with learning rate 1/4.

    Step 1: x = 2, target 0: error 2, loss 4, dw = 2 * 2 * 2 = 8, db = 4, so w = -1, b = -1.
    Step 2: x = 1 and 3, targets 0: errors -2 and -4, loss 10, dw = mean(-4, -24) = -14, db = mean(-4, -8) = -6,
    so w = 2.5, b = 0.5. The mean loss is 7.
    """
    model = line()
    batches = [batch([[2.0]], [0.0]), batch([[1.0], [3.0]], [0.0, 0.0])]
    assert fit(squared, model, sgd(model), batches) == 7.0
    assert (model.weight.item(), model.bias.item()) == (2.5, 0.5)


def test_everything_that_is_given_reaches_the_loss():
    """y = x for x = 1 and 2, targets 0, teachers 3 and 2, anchor 0: mean(1, 4) + 1/2 mean(4, 0) + 1."""
    model = line()
    teacher = PerSample(torch.tensor([[2.0], [3.0]]), torch.tensor([4, 7]))
    anchor = {"weight": torch.zeros(1, 1), "bias": torch.zeros(1)}
    given = {"criterion": nn.functional.mse_loss, "teacher": teacher, "alpha": 0.5}
    samples = [batch([[1.0], [2.0]], [0.0, 0.0], ids=[7, 4])]
    assert fit(everything, model, sgd(model, 0.0), samples, **given) == 3.5
    assert fit(everything, model, sgd(model, 0.0), samples, anchor=None, **given) == 3.5
    assert fit(everything, model, sgd(model, 0.0), samples, anchor=anchor, **given) == 4.5


def test_outputs_are_seen_before_the_step_and_may_be_answered():
    """y = x: each teacher is twice the output, so that the loss is x^2 + x^2."""
    model, seen = line(), []

    def twice(ids, outputs):
        seen.append((ids.tolist(), outputs.tolist(), outputs.requires_grad))
        return {"teacher": 2 * outputs}

    batches = [batch([[1.0]], [0.0], ids=[3]), batch([[3.0]], [0.0], ids=[1])]
    value = fit(everything, model, sgd(model, 0.0), batches, criterion=nn.functional.mse_loss, observe=twice, alpha=1.0)
    assert value == 10.0
    assert seen == [([3], [[1.0]], False), ([1], [[3.0]], False)]


def test_a_model_may_be_any_function_of_the_inputs():
    model = line(weight=2.0)
    assert fit(squared, lambda images: model(images) - 1, sgd(model, 0.0), [batch([[1.0]], [0.0])]) == 1.0


def test_the_loss_is_the_mean_over_steps_not_over_samples():
    model = line()
    batches = [batch([[1.0], [1.0], [1.0]], [1.0, 1.0, 1.0]), batch([[3.0]], [0.0])]  # losses 0 and 9
    assert fit(squared, model, sgd(model, 1e-30), batches) == 4.5


def test_gradients_of_one_step_do_not_leak_into_the_next():
    model = line()
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1e6)
    fit(squared, model, sgd(model), [batch([[2.0]], [2.0])])
    assert (model.weight.item(), model.bias.item()) == (1.0, 0.0)  # the loss was 0


def test_no_batches_change_nothing():
    model = line()
    assert fit(squared, model, sgd(model, 1.0), []) == 0.0
    assert model.weight.item() == 1.0


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_says_which_how_long_and_what_helps(value):
    model = line()
    with pytest.raises(Diverged) as caught:
        fit(constant, model, sgd(model, 0.5), [batch([[1.0]], [0.0])] * 2, value=value)
    assert str(caught.value) == (
        f"the loss is {value} after 2 steps; a lower learning rate (optimizer.*.lr, now 0.5) or normalised data "
        "usually helps"
    )


def test_one_bad_step_among_good_ones_is_not_averaged_away():
    model = line()
    with pytest.raises(Diverged, match="the loss is nan after 3 steps"):
        fit(squared, model, sgd(model, 0.0), [batch([[x]], [0.0]) for x in (1.0, math.nan, 1.0)])
