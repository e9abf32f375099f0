# a target network, epsilon-greedy actions, soft updates
import random

import torch
from torch import nn

device = "cuda"
make = lambda: nn.Sequential(nn.Linear(4, 128), nn.ReLU(), nn.Linear(128, 2)).to(device)  # noqa: E731
policy, target = make(), make()
target.load_state_dict(policy.state_dict())
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-4, amsgrad=True)
memory = []
for step in range(200):
    state = torch.rand(1, 4, device=device)
    if random.random() < 0.5:
        with torch.no_grad():
            action = policy(state).max(1).indices.view(1, 1)
    else:
        action = torch.tensor([[random.randrange(2)]], device=device, dtype=torch.long)
    after = None if step % 7 == 0 else torch.rand(1, 4, device=device)
    memory.append((state, action, after, torch.rand(1, device=device)))
    if len(memory) < 16:
        continue
    states, actions, afters, rewards = zip(*random.sample(memory, 16))
    going = torch.tensor([s is not None for s in afters], device=device, dtype=torch.bool)
    values = policy(torch.cat(states)).gather(1, torch.cat(actions))
    following = torch.zeros(16, device=device)
    with torch.no_grad():
        following[going] = target(torch.cat([s for s in afters if s is not None])).max(1).values
    loss = nn.SmoothL1Loss()(values, (following * 0.99 + torch.cat(rewards)).unsqueeze(1))
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_value_(policy.parameters(), 100)
    optimizer.step()
    old, new = target.state_dict(), policy.state_dict()
    for key in new:
        old[key] = new[key] * 0.005 + old[key] * 0.995
    target.load_state_dict(old)
