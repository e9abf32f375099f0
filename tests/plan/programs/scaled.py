# fp16 with a GradScaler, a scheduler that looks at the loss, numbers for a log file
import csv
import json
import statistics

import torch
from torch import nn

model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=1)
scaler, losses = torch.amp.GradScaler("cuda"), []
for epoch in range(6):
    with torch.autocast("cuda", dtype=torch.float16):
        out = model(torch.rand(32, 64, device="cuda"))
        loss = nn.functional.cross_entropy(out, torch.randint(10, (32,), device="cuda"))
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    accuracy = (out.argmax(1) == 3).float().mean().item()
    losses.append(loss.item())
    scheduler.step(statistics.mean(losses))
    print(
        f"loss: {loss.item():>7f}  [{epoch:>5d}] acc {accuracy:.1%} norm {norm:.2f} %"
    )
    print(json.dumps({"loss": losses[-1], "scale": scaler.get_scale(), "list": out[0].tolist()}))
    with open("log.csv", "a") as file:
        csv.writer(file).writerow([epoch, round(losses[-1], 4), max(losses), sorted(losses)[0]])
