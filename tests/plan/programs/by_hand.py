# updates by hand, through .data, as in examples/word_language_model
import math
import time

import torch
from torch import nn

model = nn.Sequential(nn.Embedding(100, 32), nn.Linear(32, 100)).cuda()
lr, best_val_loss = 20, None
for epoch in range(4):
    begin, total = time.time(), 0.0
    for i in range(3):
        tokens = torch.randint(100, (35, 20), device="cuda")
        model.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens).view(-1, 100), tokens.view(-1))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        for p in model.parameters():
            p.data.add_(p.grad, alpha=-lr)
        total += loss.item()
    print(f"| loss {total / 3:5.2f} | ppl {math.exp(total / 3):8.2f} |")
    if not best_val_loss or total < best_val_loss:
        best_val_loss = total
    else:
        lr /= 4.0
