"""transformers: GPT-2 and BERT from their configurations, and the Trainer."""

import pytest

from tests.ecosystem.running import PROGRAMS, both, on_gpus, report

pytest.importorskip("transformers")
pytest.importorskip("accelerate")


def test_gpt2_and_bert_train_write_and_are_loaded_again_as_on_the_cpu() -> None:
    there, here = both("transformers_models.py", gpus=2)
    assert there.pop("devices") == ["cuda:0"]
    assert here.pop("devices") == ["cpu"]
    assert there.pop("over two: where") == ["0", "1"]
    assert there.pop("and the host: where") == ["0", "1", "cpu"]
    assert there.pop("over two") == there.pop("and the host") == here["before"]
    assert there == here
    assert here["again"] == here["before"]


def test_the_trainer_gives_the_losses_of_the_cpu() -> None:
    there, here = both("transformers_trainer.py", "fp32")
    assert (there.pop("device"), there.pop("gpus")) == ("cuda:0", 1)
    assert (here.pop("device"), here.pop("gpus")) == ("cpu", 0)
    assert there == here


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_the_trainer_learns_the_same_in_half_precision(precision: str) -> None:
    program = str(PROGRAMS / "transformers_trainer.py")
    half = report(on_gpus(program, "cuda", precision))
    whole = report(on_gpus(program, "cuda", "fp32"))
    assert half["scaler"] == (precision == "fp16")
    assert half["losses"] != whole["losses"]
    assert half["losses"] == pytest.approx(whole["losses"], rel=1e-2)


def test_the_trainer_spreads_a_batch_over_both_gpus() -> None:
    program = str(PROGRAMS / "transformers_trainer.py")
    both_gpus = report(on_gpus(program, "cuda", "fp32", gpus=2))
    assert both_gpus["gpus"] == 2
