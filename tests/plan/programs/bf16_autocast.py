# bf16 by autocast, as nanoGPT has it, on a card that may have none
import torch
from torch import nn

dtype = torch.bfloat16
model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)).to("cuda")
optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95), fused=True)
scaler = torch.amp.GradScaler("cuda", enabled=False)
for step in range(6):
    for micro in range(2):
        with torch.amp.autocast(device_type="cuda", dtype=dtype):
            loss = model(torch.rand(8, 64, device="cuda")).float().mean() / 2
        scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad(set_to_none=True)
    if step % 2 == 0:
        lossf = loss.item() * 2
        print(f"iter {step}: loss {lossf:.4f}, time {1000 * 0.1:.2f}ms, mfu {lossf * 100:.2f}%")
