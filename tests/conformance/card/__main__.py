"""Prints what virtual GPUs refuse, next to what PyTorch's own CUDA build refuses.

python -m tests.conformance.card [--part devices] [--every 10] [--show]
"""

import argparse
import json
import re
import sys
import tomllib
import warnings
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
# Where the stand-in for the card's libraries, and not PyTorch, said no: nothing is known then.
STAND_IN = re.compile(
    r"unable to find an engine|cuDNN Frontend|CUDNN_|cur_offset|is invalid for input of size"
)
# Where we compute with values, which the stand-in does not have.
OF_VALUES = re.compile(r"LinAlgError|is zero|singular|INTERNAL ASSERT")
OF_DEVICES = re.compile(r"device|cuda:|on cpu|CPU scalars|Input type")
RECORDED_WITH = "2.13."
DTYPES = ("bool", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "complex32",
          "complex64")  # fmt: skip

Row = tuple[str, str | None, str | None]  # what was called, what CUDA says, what we say


def recorded(part: str) -> tuple[list[str], dict[str, Any]]:
    known = json.loads((HERE / f"{part}.json").read_text("utf-8"))
    return known["texts"], known["raised"]


def spread(items: list[Any], every: int) -> list[Any]:
    return items[every // 2 :: every]


def placements(part: str, every: int) -> Iterator[Row]:
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.common_modules import module_db

    from tests.conformance.card import calls

    texts, known = recorded(part)
    things = {op.full_name: op for op in op_db} if part == "devices" else {}
    things |= {info.name: info for info in module_db} if part == "modules" else {}
    with calls.unflattened():
        for name in spread(sorted(known), every):
            wanted = {json.dumps(key): code for key, code in known[name]}
            home = {}
            for key, ours in getattr(calls, part)(things[name]):
                code = wanted.get(json.dumps(key), -1)
                card = texts[code] if code is not None and code >= 0 else None
                if key[1] == "home":
                    home[key[0]] = (card, ours)
                elif code != -1 and (card is None or card != home[key[0]][0]):
                    yield f"{name} {key}", card, ours


def in_dtypes(every: int) -> Iterator[Row]:
    import torch

    texts, known = recorded("dtypes")
    calls = tomllib.loads((HERE / "dtypes.toml").read_text("utf-8"))
    for name in spread(sorted(calls), every):
        for dtype in DTYPES:
            code = known[name].get(dtype)
            names = names_of_calls() | {"dtype": getattr(torch, dtype)}
            yield f"{name} {dtype}", None if code is None else texts[code], said(calls[name], names)


def names_of_calls() -> dict[str, Any]:
    import torch

    def of(dtype: torch.dtype) -> Any:
        return lambda *shape: torch.ones(*shape, dtype=dtype).cuda()

    return {
        "torch": torch, "F": torch.nn.functional, "linalg": torch.linalg,
        "aten": torch.ops.aten, "zeros": lambda *s: of(torch.long)(*s) * 0, "mask": of(torch.bool),
        "grad": lambda *s: torch.ones(*s, device="cuda").requires_grad_(),
    }  # fmt: skip


def said(call: str, names: dict[str, Any]) -> str | None:
    import torch

    from tests.conformance.card.calls import raised

    dtype = names.get("dtype", torch.float32)
    given = {"x": lambda *shape: torch.ones(*shape, dtype=dtype).cuda()}
    return raised(lambda: eval(call, names | given))


def alerts(every: int) -> Iterator[Row]:
    import torch

    known = tomllib.loads((HERE / "alerts.toml").read_text("utf-8"))
    for name in spread(sorted(known), every):
        call = f"({known[name]['call']}){'.sum().backward()' * known[name].get('backward', False)}"
        torch.use_deterministic_algorithms(True, warn_only=True)
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            said(call, names_of_calls())
        torch.use_deterministic_algorithms(False)
        ours = {str(w.message).split(" does not have")[0] for w in heard if "determin" in str(w)}
        yield name, known[name]["alert"] or None, " ".join(sorted(ours)) or None


def judged(part: str, card: str | None, ours: str | None) -> str:
    if STAND_IN.search(card or "") or (card is None and OF_VALUES.search(ours or "")):
        return "not known"
    if part in ("devices", "modules"):
        if card and not OF_DEVICES.search(card):
            return "not known"
        ours = ours if ours and OF_DEVICES.search(ours) else None
    if card is None:
        return "runs, and here" if ours is None else "runs, and refused here"
    if ours is None:
        return "refused, and runs here"
    return "refused, with the same text" if same(card, ours) else "refused, with another text"


def same(card: str, ours: str) -> bool:
    """But for the line of PyTorch's file, what follows a text that is cut, and the kind of error.

    The kind is another one in another torch: 2.15 has a TypeError where 2.13 had a RuntimeError.
    """
    plain = [re.sub(r'"\S*aten/src/', '"aten/src/', text)[:160] for text in (card, ours)]
    return plain[0] == plain[1] or (not recorded_with_this() and message(card) == message(ours))


def message(text: str) -> str:
    return text.partition(": ")[2][:140]


def recorded_with_this() -> bool:
    import torch

    return torch.__version__.startswith(RECORDED_WITH)


PARTS = ("devices", "modules", "dtypes", "alerts")
WRONG = ("runs, and refused here", "refused, and runs here", "refused, with another text")


def rows(part: str, every: int) -> Iterator[Row]:
    if part == "dtypes":
        return in_dtypes(every)
    return alerts(every) if part == "alerts" else placements(part, every)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.card", description=__doc__)
    parser.add_argument("--part", choices=PARTS, action="append", help="all of them if left out")
    parser.add_argument("--every", type=int, default=1, help="every so-manieth op only")
    parser.add_argument("--show", action="store_true", help="each call that differs")
    parser.add_argument("--json", type=Path, help="write the counts to this file")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    from anydevice import virtual

    virtual.enable(2, "h100")
    counts = {}
    for part in given.part or PARTS:
        counts[part] = Counter()
        for what, card, ours in rows(part, given.every):
            verdict = judged(part, card, ours)
            counts[part][verdict] += 1
            if given.show and verdict in WRONG:
                print(f"{part} {what}: {verdict}\n  CUDA: {card}\n  here: {ours}")
        print(table(part, counts[part]))
    if given.json:
        given.json.write_text(json.dumps(counts))
    return 0 if all(right(count) >= 0.99 for count in counts.values()) else 1


def right(count: Counter[str]) -> float:
    known = sum(count.values()) - count["not known"]
    return 1 - sum(count[verdict] for verdict in WRONG) / known if known else 1.0


def table(part: str, count: Counter[str]) -> str:
    lines = [f"{part}: {sum(count.values())} calls, {right(count):.1%} as on PyTorch's CUDA build"]
    return "\n".join([*lines, *(f"  {n:6}  {verdict}" for verdict, n in count.most_common())])


if __name__ == "__main__":
    sys.exit(main())
