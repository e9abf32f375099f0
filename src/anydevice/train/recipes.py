"""Optimizers and losses as people name them: an object, a factory, or a name such as "adam"."""

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from anydevice.errors import UsageError, did_you_mean

Loss = Callable[..., Tensor]
OptimizerLike = str | Optimizer | Callable[[Iterable[nn.Parameter]], Optimizer]


def optimizer_of(
    wanted: OptimizerLike | None, network: nn.Module, loss: object = None
) -> Optimizer:
    """The optimizer for this network: `optimizer_of("adam", network)`."""
    if isinstance(wanted, str):
        wanted = _named(wanted, _optimizers(), "optimizer")
    if not isinstance(wanted, Optimizer):
        return _built(wanted, network, loss)
    _refuse_strangers(wanted, network, loss)
    return wanted


def refuse_unknown_optimizer(wanted: object) -> None:
    """A name that no optimizer has is refused before the run that would need it."""
    if isinstance(wanted, str) and wanted.lower() not in _optimizers():
        if wanted.lower() in _losses():
            raise UsageError(
                f"expected an optimizer, got the loss {wanted!r}: its place is after the "
                f'optimizer\'s, as in Trial(network, "adam", {wanted!r}).'
            )
        _named(wanted, _optimizers(), "optimizer")


def loss_of(wanted: str | Loss | None) -> Loss | None:
    """The loss function: `loss_of("cross_entropy")`, or anything callable as it is."""
    _refuse_class(wanted)
    if isinstance(wanted, str):
        named: Loss = _named(wanted, _losses(), "loss")
        return named
    if wanted is None or callable(wanted):
        return wanted
    raise UsageError(
        "expected a loss as a function, a module or a name such as 'cross_entropy', "
        f"got {wanted!r}."
    )


def _refuse_class(loss: object) -> None:
    if isinstance(loss, type) and issubclass(loss, nn.Module):
        name = loss.__name__
        raise UsageError(f"expected a loss as an object, got the class {name}: write {name}().")


def _built(factory: Any, network: nn.Module, loss: object) -> Optimizer:
    parameters = [p for p in _parameters(network, loss) if p.requires_grad]
    if not callable(factory) or not parameters:
        got = "a network without parameters to train" if callable(factory) else repr(factory)
        raise UsageError(
            "expected an optimizer as an object, a function of the parameters or a name such as "
            f"'adam', and a network to train, got {got}."
        )
    return factory(parameters)  # type: ignore[no-any-return]


def _refuse_strangers(optimizer: Optimizer, network: nn.Module, loss: object) -> None:
    owned = {id(parameter) for parameter in _parameters(network, loss)}
    given = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    strangers = sum(id(parameter) not in owned for parameter in given)
    if strangers:
        raise UsageError(
            f"expected an optimizer over this network's parameters, got one over {strangers} of "
            f"{len(given)} tensors that are not among them: build it from network.parameters()."
        )


def _parameters(network: nn.Module, loss: object) -> list[nn.Parameter]:
    own = list(network.parameters())
    return [*own, *loss.parameters()] if isinstance(loss, nn.Module) else own


def _named(name: str, known: dict[str, Any], what: str) -> Any:
    if name.lower() in known:
        return known[name.lower()]
    hint = did_you_mean(name, sorted(known))
    raise UsageError(f"expected the name of {_article(what)}, got {name!r}: {hint}")


def _article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


@cache
def _optimizers() -> dict[str, type[Optimizer]]:
    classes = vars(torch.optim).values()
    found = (c for c in classes if isinstance(c, type) and issubclass(c, Optimizer))
    return {kind.__name__.lower(): kind for kind in found if kind is not Optimizer}


@cache
def _losses() -> dict[str, Loss]:
    """PyTorch's own functions, with and without `_loss`: "mse" is mse_loss."""
    functions = vars(nn.functional)
    others = ("cross_entropy", "binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div")
    found = {name: functions[name] for name in others}
    found |= {"bce": functions[others[1]], "bce_with_logits": functions[others[2]]}
    for name, function in functions.items():
        if name.endswith("_loss") and not name.startswith("_"):
            found |= {name: function, name.removesuffix("_loss"): function}
    return found
