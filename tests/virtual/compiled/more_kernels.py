"""Kernels with what the interpreter of Triton does not compute itself, or computes otherwise."""

import triton
import triton.language as tl


@triton.jit
def along_kernel(x, out, places, sums, odd, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at)
    most, place = tl.max(value, axis=0, return_indices=True)
    tl.store(out, tl.sum(value))
    tl.store(out + 1, most)
    tl.store(out + 2, tl.min(value))
    tl.store(places, place)
    tl.store(sums + at, tl.cumsum(value, 0))
    tl.store(odd, tl.sum(value > 0, dtype=tl.int1).to(tl.int32))


@triton.jit
def larger_with_place(a, i, b, j):
    return tl.where(a >= b, a, b), tl.where(a >= b, i, j)


@triton.jit
def decayed(a, x, b, y):
    return a * b, x * b + y


@triton.jit
def own_functions_kernel(x, decay, most, place, state, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    rows, at = tl.arange(0, ROWS), tl.arange(0, BLOCK)
    grid = rows[:, None] * BLOCK + at[None, :]
    value = tl.load(x + grid)
    columns = tl.broadcast_to(at[None, :], (ROWS, BLOCK))
    largest, there = tl.reduce((value, columns), 1, larger_with_place)
    tl.store(most + rows, largest)
    tl.store(place + rows, there)
    _, states = tl.associative_scan((tl.load(decay + grid), value), 1, decayed)
    tl.store(state + grid, states)


@triton.jit
def leaky(x, slope):
    if x > 0:
        return x
    else:
        return x * slope


@triton.jit
def branching_kernel(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    slope = tl.full((BLOCK,), 0.5, tl.float32)
    tl.store(out + at, tl.map_elementwise(leaky, tl.load(x + at), slope))


@triton.jit
def limits_kernel(x, y, out):
    a, b = tl.load(x), tl.load(y)
    tl.store(out, tl.minimum(a, b))
    tl.store(out + 1, tl.maximum(a, b))
    tl.store(out + 2, tl.clamp(a, -1.0, 1.0))
    tl.store(out + 3, tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL))
    tl.store(out + 4, tl.clamp(a, -1.0, 1.0, propagate_nan=tl.PropagateNan.ALL))


@triton.jit
def adding_kernel(x, total, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.atomic_add(total + at // 2, tl.load(x + at))


@triton.jit
def shifting_kernel(x, by, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    number, steps = tl.load(x + at), tl.load(by + at)
    shifted = number >> steps
    tl.store(out + at, shifted)
    tl.store(by + at, steps + (1 << 63))


@triton.jit
def of_the_card_kernel(out, number_of: tl.constexpr):
    tl.extra.cuda.gdc_wait()
    begin = tl.extra.cuda.globaltimer()
    tl.store(out, tl.extra.cuda.smid())
    tl.store(out + 1, tl.extra.cuda.num_threads())
    tl.store(out + 2, number_of())
    tl.store(out + 3, (tl.extra.cuda.globaltimer() >= begin).to(tl.int32))


@triton.jit
def asserting_kernel(x, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.device_assert(tl.load(x + at) < 1, "every number is less than one")


@triton.jit
def funnel_kernel(x, y, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    a, b = tl.load(x + at), tl.load(y + at)
    steps = tl.full((BLOCK,), 17, tl.int32)
    tl.store(
        out + at,
        tl.inline_asm_elementwise(
            "shf.l.wrap.b32 $0, $1, $2, $3;", "=r,r,r,r", [a, b, steps], tl.int32, True, 1
        ),
    )


@triton.jit
def packed_kernel(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(
        out + at,
        tl.inline_asm_elementwise(
            "{ and.b32 $0, $1, 0x1F1F1F1F; // no bit leaves its byte\n shl.b32 $0, $0, 3; }",
            "=r,r",
            [tl.load(x + at)],
            tl.uint8,
            True,
            4,
        ),
    )


@triton.jit
def softplus_kernel(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(
        out + at,
        tl.inline_asm_elementwise(
            """{ .reg .pred p;
            setp.gt.f32 p, $1, 20.;
            @p mov.f32 $0, $1;
            @!p mul.f32 $0, $1, 1.4426950408889634;
            @!p ex2.approx.ftz.f32 $0, $0;
            @!p add.f32 $0, $0, 1.0;
            @!p lg2.approx.ftz.f32 $0, $0;
            @!p mul.f32 $0, $0, 0.6931471805599453; }""",
            "=r,r",
            [tl.load(x + at)],
            tl.float32,
            True,
            1,
        ),
    )


@triton.jit
def asm_kernel(x, y, first, second, TEXT: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    a, b = tl.inline_asm_elementwise(
        TEXT, "=r,=r,r,r", [tl.load(x + at), tl.load(y + at)], (tl.int32, tl.int32), True, 1
    )
    tl.store(first + at, a)
    tl.store(second + at, b)


@triton.jit
def small_integers_kernel(x, out, BLOCK: tl.constexpr):
    value = tl.load(x + tl.arange(0, BLOCK))
    tl.store(out, tl.sum(value, dtype=tl.int8))


@triton.jit
def extremes_kernel(x, values, places, BLOCK: tl.constexpr):
    value = tl.load(x + tl.arange(0, BLOCK))
    most, at_most = tl.max(value, 0, return_indices=True)
    least, at_least = tl.min(value, 0, return_indices=True)
    tl.store(values, most)
    tl.store(values + 1, least)
    tl.store(places, at_most)
    tl.store(places + 1, at_least)


@triton.jit
def counting_kernel(out, most):
    i = 0
    while tl.condition(i < most, disable_licm=True):
        i += 2
    tl.store(out, i)


@triton.jit
def described_kernel(out, SIZE: tl.constexpr):
    own: tl.constexpr = SIZE
    tl.static_assert(own.type == SIZE.type)
    tl.store(out, own.value + SIZE.value)


gather = tl.gather
loaded = tl.load


@triton.jit
def by_other_names_kernel(x, places, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, gather(loaded(x + at), tl.load(places + at), 0))


@triton.jit
def masked_rows_kernel(x, out, rows, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    for row in range(8):
        inside = (at < WIDTH) & (row < rows)
        tl.store(out + at, tl.load(x + at, mask=inside), mask=inside)
        x += WIDTH
        out += WIDTH
