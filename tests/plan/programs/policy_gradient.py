# torch.distributions: REINFORCE, with a threshold that ends the training
import numpy as np
import torch
from torch import nn
from torch.distributions import Categorical

device = "cuda"
policy = nn.Sequential(nn.Linear(4, 128), nn.Dropout(0.6), nn.ReLU(), nn.Linear(128, 2)).to(device)
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
eps = np.finfo(np.float32).eps.item()
running_reward = 10
for episode in range(100):
    log_probs, rewards = [], []
    for t in range(8):
        state = torch.from_numpy(np.random.rand(4)).float().unsqueeze(0).to(device)
        m = Categorical(torch.softmax(policy(state), dim=1))
        action = m.sample()
        log_probs.append(m.log_prob(action))
        rewards.append(float(action.item() == 1))
    R, returns = 0, []
    for r in rewards[::-1]:
        R = r + 0.99 * R
        returns.insert(0, R)
    returns = torch.tensor(returns, device=device)
    returns = (returns - returns.mean()) / (returns.std() + eps)
    loss = torch.cat([-p * R for p, R in zip(log_probs, returns)]).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    running_reward = 0.05 * loss.item() + 0.95 * running_reward
    if running_reward > 475:
        print(f"Solved! Running reward is now {running_reward}")
        break
