"""pytorch-ignite: engines, mixed precision, metrics, handlers: python ignite_train.py cuda amp."""

import json
import sys
import tempfile

import ignite.distributed as idist
import torch
from ignite.engine import Events, create_supervised_evaluator, create_supervised_trainer
from ignite.handlers import Checkpoint, DiskSaver, EMAHandler, LRScheduler
from ignite.metrics import Accuracy, ConfusionMatrix, Loss, RunningAverage, TopKCategoricalAccuracy
from torch.utils.data import DataLoader, TensorDataset

device, amp = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
torch.manual_seed(0)
samples = TensorDataset(torch.randn(64, 1, 8, 8), torch.randint(3, (64,)))
batches = DataLoader(samples, batch_size=16, pin_memory=device == "cuda")
network = torch.nn.Sequential(
    torch.nn.Conv2d(1, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(144, 3)
).to(device)
optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
criterion = torch.nn.CrossEntropyLoss()
dtypes = set()
network.register_forward_hook(lambda module, inputs, scores: dtypes.add(str(scores.dtype)))

trainer = create_supervised_trainer(
    network,
    optimizer,
    criterion,
    device=device,
    non_blocking=True,
    amp_mode=amp,
    scaler=bool(amp),
    gradient_accumulation_steps=2,
)
metrics = {
    "accuracy": Accuracy(device=device),
    "loss": Loss(criterion, device=device),
    "confusion": ConfusionMatrix(3, device=device),
    "top2": TopKCategoricalAccuracy(2, device=device),
}
evaluator = create_supervised_evaluator(network, metrics, device=device)
RunningAverage(output_transform=lambda loss: loss, device=device).attach(trainer, "running")
slower = LRScheduler(torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5))
trainer.add_event_handler(Events.EPOCH_COMPLETED, slower)
EMAHandler(network, momentum=0.1).attach(trainer)
losses, evaluated = [], {}


@trainer.on(Events.ITERATION_COMPLETED)
def remember(engine):
    losses.append(engine.state.output)


@trainer.on(Events.EPOCH_COMPLETED)
def evaluate(engine):
    found = evaluator.run(batches).metrics
    evaluated.update({name: torch.as_tensor(it).tolist() for name, it in found.items()})
    assert engine.state.metrics["running"] > 0


with tempfile.TemporaryDirectory() as folder:
    kept = {"network": network, "optimizer": optimizer, "trainer": trainer}
    saver = Checkpoint(kept, DiskSaver(folder, require_empty=False), n_saved=1)
    trainer.add_event_handler(Events.EPOCH_COMPLETED, saver)
    trainer.run(batches, max_epochs=3)
    saved = torch.load(saver.last_checkpoint, map_location=device)
    Checkpoint.load_objects({"network": network}, saved)

print(
    json.dumps(
        {
            "losses": losses,
            "evaluated": evaluated,
            "dtypes": sorted(dtypes),
            "parameters": str(next(network.parameters()).device),
            "idist": [str(idist.device()), idist.backend()],
        }
    )
)
