"""What ops give on a virtual GPU, as JSON: python tests/virtual/hollow_cases.py [hollow]

Of each case its results and the gradients of its inputs as [sizes, strides, type], or its error.
"""

import json
import sys
from collections.abc import Callable, Iterator
from itertools import product

import torch
from torch import Tensor
from torch.nn import functional as F

import anydevice as ad

Case = Callable[[Callable[..., Tensor]], object]
BY_ELEMENT = {
    name: getattr(torch, name, None) or getattr(F, name)
    for name in ("relu", "gelu", "silu", "sigmoid", "tanh", "rsqrt", "exp", "sqrt", "square")
}
LAYOUTS = {
    "rows": lambda t: t,
    "transposed": lambda t: t.transpose(1, 3),
    "channels last": lambda t: t.to(memory_format=torch.channels_last),
    "expanded": lambda t: t[:, :, :1].expand(-1, -1, 5, -1),
    "every other": lambda t: t[..., ::2],
}


def of_networks() -> Iterator[tuple[str, Case]]:
    for name, dtype in product(BY_ELEMENT, (torch.float32, torch.bfloat16)):
        for layout, laid in LAYOUTS.items():
            op = BY_ELEMENT[name]
            yield (
                f"{name} {layout} {dtype}",
                lambda x, o=op, s=laid, d=dtype: o(s(x(2, 3, 5, 4, d))),
            )
    yield "gelu by tanh", lambda x: F.gelu(x(3, 4), approximate="tanh")
    for name in ("add", "sub", "mul", "div"):
        op = getattr(torch, name)
        yield f"{name} of shapes", lambda x, o=op: o(x(2, 1, 3), x(4, 1))
        yield f"{name} of types", lambda x, o=op: o(x(2, 3), x(3, torch.bfloat16))
        yield f"{name} of a number", lambda x, o=op: o(x(2, 3, torch.float16), 2.5)
        yield f"{name} of whole numbers", lambda x, o=op: o(x(2, 3).long(), 2)
        yield f"{name} on the host", lambda x, o=op: o(x(2, 3), torch.tensor(2.0))
        yield f"{name} refused", lambda x, o=op: o(x(2, 3), x(4))
        last = LAYOUTS["channels last"]
        yield f"{name} channels last", lambda x, o=op, s=last: o(s(x(2, 3, 4, 5)), x(3, 1, 1))
    yield "mm", lambda x: x(3, 4) @ x(5, 4).t()
    yield "mm refused", lambda x: x(3, 4) @ x(5, 4)
    yield "mm of two types", lambda x: x(3, 4) @ x(4, 5, torch.float16)
    yield "bmm", lambda x: torch.bmm(x(2, 3, 4), x(2, 4, 5))
    yield "addmm", lambda x: torch.addmm(x(5), x(3, 4), x(4, 5), beta=0.5)
    yield "addmm refused", lambda x: torch.addmm(x(6), x(3, 4), x(4, 5))
    yield "baddbmm", lambda x: torch.baddbmm(x(1, 1, 5), x(2, 3, 4), x(2, 4, 5))
    yield "linear", lambda x: F.linear(x(2, 3, 4, torch.bfloat16), x(5, 4, torch.bfloat16))
    yield "cat", lambda x: torch.cat([x(2, 3), x(2, 4, torch.float16)], 1)
    yield "cat refused", lambda x: torch.cat([x(2, 3), x(3, 4)], 1)
    yield "stack", lambda x: torch.stack([x(2, 3), x(3, 2).t()], 1)
    yield "sum", lambda x: x(2, 3, 4).sum((0, 2), keepdim=True)
    yield "mean", lambda x: x(2, 3, 4, torch.float16).mean(1, dtype=torch.float32)
    yield "mean refused", lambda x: x(2, 3).long().mean(1)
    yield "pow", lambda x: x(2, 3).t() ** 3


def of_losses_and_norms() -> Iterator[tuple[str, Case]]:
    half = torch.float16
    for name in ("softmax", "log_softmax"):
        op = getattr(F, name)
        yield name, lambda x, o=op: o(x(2, 3, 4).transpose(0, 2), 1)
        yield f"{name} in float", lambda x, o=op: o(x(2, 3, half), 1, dtype=torch.float32)
    yield "cross entropy", lambda x: F.cross_entropy(x(4, 3), torch.ones_like(x(4)).long())
    yield (
        "cross entropy one by one",
        lambda x: F.cross_entropy(x(4, 3), torch.ones_like(x(4)).long(), reduction="none"),
    )
    yield (
        "cross entropy refused",
        lambda x: F.cross_entropy(x(4, 3), torch.ones_like(x(5)).long()),
    )
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        yield (
            f"layer norm {dtype}",
            lambda x, d=dtype: F.layer_norm(x(2, 4, 3, d).mT, (4,), x(4, d), x(4, d)),
        )
    yield "layer norm without weights", lambda x: F.layer_norm(x(2, 3, 4), (3, 4))
    yield "layer norm without bias", lambda x: F.layer_norm(x(2, 3), (3,), x(3))
    yield "layer norm of nothing", lambda x: F.layer_norm(x(0, 3), (3,), x(3), x(3))
    yield "layer norm refused", lambda x: F.layer_norm(x(2, 3), (4,))
    yield "layer norm refused for its weight", lambda x: F.layer_norm(x(2, 3), (3,), x(4))
    yield (
        "layer norm's figures",
        lambda x: torch.native_layer_norm(x(2, 3), (3,), None, None, 1e-5),
    )
    for training in (True, False):
        yield (
            f"batch norm, training {training}",
            lambda x, t=training: F.batch_norm(
                LAYOUTS["channels last"](x(2, 3, 4, 5)),
                *(x(3).detach().clone() for _ in range(2)),
                *(x(3), x(3), t),
            ),
        )
    yield "dropout", lambda x: F.dropout(x(2, 3, 4).transpose(0, 1))
    for layout in ("rows", "transposed"):
        for options in ({}, {"is_causal": True}, {"dropout_p": 0.1}):
            yield (
                f"attention {layout} {options}",
                lambda x, s=LAYOUTS[layout], o=options: F.scaled_dot_product_attention(
                    *(s(x(2, 3, 8, 16)) for _ in range(3)), **o
                ),
            )
    yield (
        "attention of few keys",
        lambda x: F.scaled_dot_product_attention(
            x(2, 4, 8, 16, half), x(2, 2, 6, 16, half), x(2, 2, 6, 16, half), enable_gqa=True
        ),
    )
    yield (
        "attention with a bias",
        lambda x: F.scaled_dot_product_attention(
            x(1, 2, 8, 16), x(1, 2, 8, 16), x(1, 2, 8, 16), attn_mask=x(1, 2, 8, 8)
        ),
    )


def of_lists() -> Iterator[tuple[str, Case]]:
    def lists(x: Callable[..., Tensor], *dtypes: torch.dtype) -> list[list[Tensor]]:
        return [
            [t.detach() for t in (x(2, 3, dtype), x(3, 2, dtype).t(), x(0, dtype))]
            for dtype in dtypes or (torch.float32,) * 3
        ]

    for name in ("add", "mul", "sub", "div"):
        op = getattr(torch, f"_foreach_{name}")
        in_place = getattr(torch, f"_foreach_{name}_")
        yield f"each {name} of a list", lambda x, o=op: o(*lists(x)[:2])
        yield f"each {name} of a number", lambda x, o=op: o(lists(x)[0], 2.0)
        yield f"each {name} of numbers", lambda x, o=op: o(lists(x)[0], [1.0, 2.0, 3.0])
        yield f"each {name} of too few", lambda x, o=op: o(lists(x)[0], [1.0, 2.0])
        yield f"each {name} of a complex number", lambda x, o=op: o(lists(x)[0], 2j)
        yield (
            f"each {name} of two types",
            lambda x, o=op: o(*lists(x, torch.float32, torch.float16)),
        )
        yield f"each {name} in place", lambda x, o=in_place: o(*lists(x)[:2])
        yield f"each {name} in place refused", lambda x, o=in_place: o(lists(x)[0], lists(x)[0][:2])
    for name in ("addcmul", "addcdiv"):
        op = getattr(torch, f"_foreach_{name}")
        yield f"each {name}", lambda x, o=op: o(*lists(x), 0.5)
        yield f"each {name} of numbers", lambda x, o=op: o(*lists(x), [0.5, 1.0, 2.0])
    for name in ("sqrt", "neg", "reciprocal"):
        op = getattr(torch, f"_foreach_{name}")
        yield f"each {name}", lambda x, o=op: o(lists(x)[0])
        yield f"each {name} expanded", lambda x, o=op: o([x(1, 3).detach().expand(4, 3)])
        yield f"each {name} of whole numbers", lambda x, o=op: o([x(2, 3).long()])
    yield "each lerp", lambda x: torch._foreach_lerp(*lists(x)[:2], 0.5)
    yield "each larger", lambda x: torch._foreach_maximum(*lists(x)[:2])


CASES = dict((*of_networks(), *of_losses_and_norms(), *of_lists()))


def outcome(case: Case) -> object:
    made: list[Tensor] = []

    def some(*words: object) -> Tensor:
        shape = [word for word in words if isinstance(word, int)]
        dtype = next((w for w in words if isinstance(w, torch.dtype)), torch.float32)
        made.append(torch.ones(shape, dtype=dtype, device="cuda", requires_grad=True))
        return made[-1]

    try:
        results = case(some)
    except (RuntimeError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    listed = [results] if isinstance(results, Tensor) else list(results or ())  # type: ignore[call-overload]
    learnt = [result for result in listed if result.grad_fn is not None]
    torch.autograd.backward(learnt, [result.detach() for result in learnt])
    return [described(tensor) for tensor in (*listed, *(m.grad for m in made))]


def described(tensor: Tensor | None) -> object:
    return tensor is not None and [list(tensor.shape), list(tensor.stride()), str(tensor.dtype)]


if __name__ == "__main__":
    with ad.virtual_gpus(1, "a100-40gb", hollow="hollow" in sys.argv):
        print(json.dumps({name: outcome(case) for name, case in CASES.items()}))
