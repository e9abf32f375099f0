"""The other layers of Liger-Kernel: positions, losses, mixtures, chunked losses, whole models."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.testing import assert_close

from anydevice.virtual.compiled import interpreter
from tests.triton_kernels.cases import Case, gpu, numbers, op

pytest.importorskip("liger_kernel")
__all__ = ["gpu"]
ROWS, WORDS = 8, 40  # tokens, and the vocabulary


def labels() -> Tensor:
    return torch.arange(ROWS, device="cuda")


# ---- positions ----


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), -1) * sin


def angles(*sizes: int) -> tuple[Tensor, Tensor]:
    """The cosines and sines of angles that both halves of a head share."""
    angle = numbers(*sizes).repeat_interleave(2, -1)
    angle = torch.cat((angle[..., ::2], angle[..., ::2]), -1)
    return angle.cos(), angle.sin()


def rope() -> Case:
    cos, sin = angles(1, 6, 8)
    return (
        lambda q, k: op("rope", "Rope")(q, k, cos, sin),
        lambda q, k: (turned(q, cos[:, None], sin[:, None]), turned(k, cos[:, None], sin[:, None])),
        [numbers(2, 4, 6, 16), numbers(2, 2, 6, 16)],
    )


def qwen2vl_mrope() -> Case:
    (cos, sin), parts = angles(3, 2, 6, 8), [2, 3, 3]

    def plain(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        mixed = [
            torch.cat([part[at % 3] for at, part in enumerate(each.split(parts * 2, -1))], -1)
            for each in (cos, sin)
        ]
        there = [each[:, None] for each in mixed]
        return turned(q, *there), turned(k, *there)

    layer = op("qwen2vl_mrope", "Qwen2VLMRope")
    inputs = [numbers(2, 4, 6, 16), numbers(2, 2, 6, 16)]
    return lambda q, k: layer(q, k, cos, sin, parts), plain, inputs


def llama4_rope() -> Case:
    turns = torch.polar(torch.ones(6, 8, device="cuda"), numbers(6, 8))

    def one(x: Tensor) -> Tensor:
        pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * turns[None, :, None]).flatten(-2)

    layer = op("llama4_rope", "Llama4Rope")
    inputs = [numbers(2, 6, 4, 16), numbers(2, 6, 2, 16)]
    return lambda q, k: layer(q, k, turns), lambda q, k: (one(q), one(k)), inputs


# ---- losses ----


def divergence(student: Tensor, teacher: Tensor) -> Tensor:
    """Jensen and Shannon's, of logarithms."""
    middle = torch.log((student.exp() + teacher.exp()) / 2)
    both = (
        F.kl_div(middle, each, reduction="batchmean", log_target=True)
        for each in (student, teacher)
    )
    return sum(both) / 2  # type: ignore[return-value]


def jsd() -> Case:
    teacher, layer = numbers(ROWS, WORDS).log_softmax(-1), op("jsd", "JSD")
    inputs = [numbers(ROWS, WORDS).log_softmax(-1)]
    return lambda x: layer(x, teacher), lambda x: divergence(x, teacher), inputs


def fused_linear_jsd() -> Case:
    seen, weight = numbers(ROWS, 32), numbers(WORDS, 32)
    teacher, layer = (seen @ weight.t()).log_softmax(-1), op("fused_linear_jsd", "FusedLinearJSD")
    return (
        lambda x, w: layer(x, w, seen, weight),
        lambda x, w: divergence((x @ w.t()).log_softmax(-1), teacher),
        [numbers(ROWS, 16), numbers(WORDS, 16)],
    )


def fused_linear_kl_div() -> Case:
    target, layer = numbers(ROWS, WORDS).softmax(-1), op("fused_linear_kl_div", "FusedLinearKLDiv")
    return (
        lambda x, w: layer(x, w, target),
        lambda x, w: F.kl_div((x @ w.t()).log_softmax(-1), target, reduction="batchmean"),
        [numbers(ROWS, 16), numbers(WORDS, 16)],
    )


def fused_ce_tvd() -> Case:
    teacher, layer = numbers(ROWS, WORDS), op("fused_ce_tvd", "FusedCETVD")

    def plain(x: Tensor) -> tuple[Tensor, Tensor]:
        apart = (x.softmax(-1) - teacher.softmax(-1)).abs().sum(-1)
        return F.cross_entropy(x, labels(), reduction="none"), apart / 2

    return lambda x: layer(x, teacher, labels()), plain, [numbers(ROWS, WORDS)]


def grpo_loss() -> Case:
    function = import_module("liger_kernel.ops.grpo_loss").GrpoLossFunction.apply
    chosen = torch.randint(0, WORDS, (2, 5), device="cuda")
    before, gain = -torch.rand(2, 5, device="cuda") - 3, torch.tensor([1.0, -0.5], device="cuda")
    mask = torch.ones(2, 5, device="cuda")

    def plain(x: Tensor) -> Tensor:
        now = x[:, :-1].log_softmax(-1).gather(-1, chosen[..., None])[..., 0]
        ratio = (now - before).exp()
        worth = torch.min(ratio * gain[:, None], ratio.clamp(0.8, 1.2) * gain[:, None])
        return -worth.mean(1).mean()

    return (
        lambda x: function(x, before, None, chosen, gain, mask, 1.0, 0.0, 0.2, 0.2, False),
        plain,
        [numbers(2, 6, WORDS)],
    )


# ---- normalisation and attention ----


def scaled(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def poly_norm() -> Case:
    def plain(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return w[0] * scaled(x**3) + w[1] * scaled(x**2) + w[2] * scaled(x) + b

    layer = op("poly_norm", "PolyNorm")
    return (
        lambda *given: layer(*given, 1e-6, False),
        plain,
        [numbers(8, 32), numbers(3), numbers(1)[0]],
    )


def modulated_rms_norm() -> Case:
    layer = op("modulated_rms_norm", "ModulatedRMSNorm")
    return (
        lambda *given: layer(*given, 1e-6),
        lambda x, w, scale, shift: scaled(x) * w * (1 + scale) + shift,
        [numbers(8, 32), numbers(32), numbers(8, 32), numbers(8, 32)],
    )


def attn_res() -> Case:
    def plain(states: Tensor, query: Tensor, weight: Tensor) -> Tensor:
        share = ((scaled(states) * weight) @ query).softmax(0)
        return (share[..., None] * states).sum(0)

    layer = op("attn_res", "AttnRes")
    return (
        lambda *given: layer(*given, 1e-6),
        plain,
        [numbers(3, 2, 5, 32), numbers(32), numbers(32)],
    )


def sparsemax() -> Case:
    def plain(x: Tensor) -> Tensor:
        ordered, _ = x.sort(-1, descending=True)
        count = torch.arange(1, x.shape[-1] + 1, device="cuda")
        kept = 1 + count * ordered > ordered.cumsum(-1)
        size = kept.sum(-1, keepdim=True)
        return (x - ((ordered * kept).sum(-1, keepdim=True) - 1) / size).clamp(min=0)

    return lambda x: op("sparsemax", "Sparsemax")(x, -1), plain, [numbers(8, 32)]


def multi_token_attention() -> Case:
    past = torch.ones(16, 16, device="cuda").tril().bool()

    def plain(scores: Tensor, weight: Tensor) -> Tensor:
        share = scores.masked_fill(~past, -1e9).softmax(-1)
        return F.conv2d(share, weight, padding=1).masked_fill(~past, 0)

    layer = op("multi_token_attention", "MultiTokenAttention")
    inputs = [numbers(2, 3, 16, 16), numbers(3, 3, 3, 3)]
    return lambda scores, weight: layer(scores, weight, None, 1, 1), plain, inputs


def fused_neighborhood_attention() -> Case:
    at = torch.arange(16, device="cuda")
    near = (at[:, None] - at).abs() <= 2

    def plain(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = (q @ k.transpose(-1, -2) / 4).masked_fill(~near, -torch.inf)
        return scores.softmax(-1) @ v

    layer = op("fused_neighborhood_attention", "FusedNeighborhoodAttention")
    return lambda *given: layer(*given, 5), plain, [numbers(1, 2, 16, 16) for _ in range(3)]


# ---- the rest ----


def relu_squared() -> Case:
    return op("relu_squared", "ReLUSquared"), lambda x: x.relu() ** 2, [numbers(8, 64)]


def embedding() -> Case:
    places = torch.randint(0, WORDS, (2, 6), device="cuda")
    layer = op("experimental.embedding", "Embedding")
    return lambda table: layer(table, places), lambda table: table[places], [numbers(WORDS, 32)]


def tiled_mlp() -> Case:
    network = nn.Sequential(nn.Linear(32, 64), nn.SiLU(), nn.Linear(64, 32)).cuda()
    layer = op("tiled_mlp", "TiledMLP")
    return (
        lambda x: layer(lambda module, part: module(part), network, x, 4, None),
        network,
        [numbers(1, 16, 32)],
    )


def fused_moe() -> Case:
    experts = torch.tensor([[0, 1], [1, 2], [2, 3], [3, 0], [0, 2], [1, 3]], device="cuda")

    def plain(x: Tensor, up: Tensor, down: Tensor, share: Tensor) -> Tensor:
        rows = []
        for row, own, parts in zip(x, experts.tolist(), share, strict=True):
            total = torch.zeros_like(row)
            for expert, part in zip(own, parts, strict=True):
                gate, value = (up[expert] @ row).chunk(2)
                total = total + part * (down[expert] @ (F.silu(gate) * value))
            rows.append(total)
        return torch.stack(rows)

    layer = op("fused_moe", "FusedMoE")
    inputs = [
        numbers(6, 32),
        numbers(4, 64, 32) / 4,
        numbers(4, 32, 32) / 4,
        torch.rand(6, 2).cuda(),
    ]
    return lambda x, up, down, share: layer(x, up, down, experts, share), plain, inputs


def mhc_pre() -> Case:
    layer = op("mhc", "MHCPre")
    inputs = [numbers(2, 4, 2, 32), torch.rand(2, 4, 2).cuda()]
    return layer, lambda x, share: (share[..., None] * x).sum(-2), inputs


def mhc_post() -> Case:
    def plain(x: Tensor, out: Tensor, post: Tensor, mixed: Tensor) -> Tensor:
        return mixed @ x + post[..., None] * out[..., None, :]

    sizes = (2, 4, 2, 32), (2, 4, 32), (2, 4, 2), (2, 4, 2, 2)
    return op("mhc", "MHCPostRes"), plain, [numbers(*each) for each in sizes]


CASES = (
    *(rope, qwen2vl_mrope, llama4_rope, jsd, fused_linear_jsd, fused_linear_kl_div, fused_ce_tvd),
    *(grpo_loss, poly_norm, modulated_rms_norm, attn_res, sparsemax, multi_token_attention),
    *(fused_neighborhood_attention, relu_squared, embedding, tiled_mlp, fused_moe),
    *(mhc_pre, mhc_post),
)
FIRST_ALONE = ("grpo_loss",)  # its other results are figures to log


def with_gradients(
    function: Callable[..., Any], inputs: list[Tensor], *, first_alone: bool
) -> list[Tensor]:
    own = [each.detach().clone().requires_grad_() for each in inputs]
    made = function(*own)
    results = made if isinstance(made, tuple) else (made,)
    results = results[:1] if first_alone else results
    total = torch.zeros((), device="cuda")
    for result in results:
        weights = torch.linspace(-1, 1, result.numel(), device="cuda") + 0.1
        total = total + (result * weights.view(result.shape)).sum()
    total.backward()
    return [
        *(each.detach() for each in results),
        *(each.grad for each in own if each.grad is not None),
    ]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_a_layer_has_the_numbers_of_its_definition(case: Callable[[], Case]) -> None:
    torch.manual_seed(0)
    triton, plain, inputs = case()
    alone = case.__name__ in FIRST_ALONE
    mine = with_gradients(triton, inputs, first_alone=alone)
    reference = with_gradients(plain, inputs, first_alone=alone)
    assert len(mine) > len(inputs)
    assert_close(mine, reference, rtol=1e-3, atol=1e-4)


# ---- losses in chunks, which torch.compile compiles ----

PREFERENCES = ("DPO", "ORPO", "CPO", "SimPO", "KTO")
DISTILLED = ("JSD", "CosineSimilarity")


def chunked(name: str, device: str) -> list[Tensor]:
    """The loss and its gradients, of numbers drawn on the CPU."""
    losses = import_module("liger_kernel.chunked_loss")
    loss = getattr(losses, f"LigerFusedLinear{name}Loss")(compiled=False)
    draw = torch.Generator().manual_seed(0)
    x, w = (torch.randn(*size, generator=draw) for size in ((4, 6, 16), (WORDS, 16)))
    ids = torch.randint(0, WORDS, (4, 6), generator=draw).to(device)
    other = [torch.randn(*size, generator=draw).to(device) for size in ((4, 6, 16), (WORDS, 16))]
    x, w = (each.to(device).requires_grad_() for each in (x, w))
    if name in DISTILLED:
        flat = x.flatten(0, 1)
        made = loss(flat, w, other[0].flatten(0, 1), other[1], ids.flatten())
    elif name == "KTO":
        liked = torch.tensor([True, False, True, False], device=device)
        made = loss(x, w, ids, preference_labels=liked, ref_input=other[0], ref_weight=other[1])
    elif name == "DPO":
        made = loss(w, x, ids, ref_input=other[0], ref_weight=other[1])
    else:
        made = loss(w, x, ids)
    total = made[0] if isinstance(made, tuple) else made
    total.backward()
    return [total.detach().cpu(), x.grad.cpu(), w.grad.cpu()]


@pytest.mark.parametrize("name", [*PREFERENCES, *DISTILLED])
def test_a_chunked_loss_is_that_of_the_cpu(name: str) -> None:
    assert_close(chunked(name, "cuda"), chunked(name, "cpu"), rtol=1e-4, atol=1e-5)


# ---- whole models ----

MODELS = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gemma": "GemmaForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
}
SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "pad_token_id": 0,
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_of_transformers_trains_as_without_ligers_kernels(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers = pytest.importorskip("transformers")
    network = getattr(transformers, MODELS[kind])
    torch.manual_seed(0)
    config = network.config_class(**SMALL)
    plain = network(config).cuda()
    patched = network(config).cuda()
    patched.load_state_dict(plain.state_dict())
    liger = import_module("liger_kernel.transformers")
    words = torch.randint(1, 64, (2, 12), device="cuda")
    launch, launched, losses = interpreter.launch, [], []

    def heard(kernel: Any, *rest: Any) -> None:
        launched.append(kernel.__name__)
        launch(kernel, *rest)

    monkeypatch.setattr(interpreter, "launch", heard)
    for model in (plain, patched):
        if model is patched:
            assert not launched
            getattr(liger, f"apply_liger_kernel_to_{kind}")(model=model)
        loss = model(input_ids=words, labels=words).loss
        loss.backward()
        losses.append(loss.detach())
    assert len(set(launched)) >= 4  # both ways of a norm and of another layer
    assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-5)
    for mine, other in zip(patched.parameters(), plain.parameters(), strict=True):
        assert_close(mine.grad, other.grad, rtol=1e-3, atol=1e-5)
