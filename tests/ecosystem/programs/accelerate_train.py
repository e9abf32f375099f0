"""Accelerator: training, gathering, saving, offloading: python accelerate_train.py cuda fp16."""

import json
import sys
import tempfile

import torch
from accelerate import Accelerator, cpu_offload, dispatch_model
from accelerate.utils import DataLoaderConfiguration, set_seed
from torch.utils.data import DataLoader, TensorDataset

device, precision = sys.argv[1:3]
set_seed(0)
accelerator = Accelerator(
    cpu=device == "cpu",
    mixed_precision=precision,
    gradient_accumulation_steps=2,
    dataloader_config=DataLoaderConfiguration(split_batches=True),
)
samples = TensorDataset(torch.randn(64, 10), torch.randint(3, (64,)))
batches = DataLoader(samples, batch_size=16)
network = torch.nn.Sequential(torch.nn.Linear(10, 20), torch.nn.ReLU(), torch.nn.Linear(20, 3))
optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
dtypes = set()
network[-1].register_forward_hook(lambda module, inputs, scores: dtypes.add(str(scores.dtype)))
network, optimizer, batches, schedule = accelerator.prepare(network, optimizer, batches, schedule)

losses = []
for _ in range(3):
    for x, y in batches:
        with accelerator.accumulate(network):
            loss = torch.nn.functional.cross_entropy(network(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        losses.append(accelerator.reduce(loss.detach(), "mean").item())

network.eval()
with torch.no_grad():
    right = [accelerator.gather_for_metrics(network(x).argmax(-1) == y) for x, y in batches]
with tempfile.TemporaryDirectory() as folder:
    if accelerator.num_processes == 1:
        accelerator.save_state(folder)
        accelerator.load_state(folder)

plain = accelerator.unwrap_model(network, keep_fp32_wrapper=False)
wholes = [plain(samples.tensors[0].to(accelerator.device)).sum().item()]
if accelerator.num_processes == 1 < torch.cuda.device_count() and device == "cuda":
    spread = dispatch_model(plain, {"0": 0, "1": 1, "2": "cpu"}, main_device=0)
    wholes.append(spread(samples.tensors[0]).sum().item())
    kept = cpu_offload(torch.nn.Linear(10, 3), execution_device=torch.device("cuda:1"))
    assert kept(torch.ones(1, 10)).device.type == "cpu"
    assert torch.cuda.max_memory_allocated(1) > 0
if accelerator.is_main_process:
    print(
        json.dumps(
            {
                "losses": losses,
                "right": torch.cat(right).sum().item(),
                "seen": sum(len(each) for each in right),
                "dtypes": sorted(dtypes),
                "device": str(accelerator.device),
                "wholes": wholes,
                "processes": accelerator.num_processes,
            }
        )
    )
accelerator.end_training()
