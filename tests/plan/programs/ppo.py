# torch.distributions: PPO as CleanRL writes it, a buffer on the GPU and early stopping by KL
import numpy as np
import torch
from torch import nn, optim
from torch.distributions.normal import Normal

device = torch.device("cuda")
steps, envs = 16, 4
actor = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 2)).to(device)
critic = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
log_std = nn.Parameter(torch.zeros(1, 2, device=device))
optimizer = optim.Adam([*actor.parameters(), *critic.parameters(), log_std], lr=3e-4, eps=1e-5)
obs = torch.zeros((steps, envs, 8)).to(device)
actions = torch.zeros((steps, envs, 2)).to(device)
log_probs = torch.zeros((steps, envs)).to(device)
rewards = torch.zeros((steps, envs)).to(device)
values = torch.zeros((steps, envs)).to(device)
target_kl = 0.01
for update in range(4):
    for step in range(steps):
        obs[step] = torch.Tensor(np.random.rand(envs, 8)).to(device)
        with torch.no_grad():
            probs = Normal(actor(obs[step]), log_std.exp().expand(envs, 2))
            action = probs.sample()
            values[step] = critic(obs[step]).flatten()
        actions[step] = action
        log_probs[step] = probs.log_prob(action).sum(1)
        np.clip(action.cpu().numpy(), -1, 1)
        rewards[step] = torch.tensor(np.random.rand(envs)).to(device).view(-1)
    advantages = rewards - values
    clip_fractions = []
    for epoch in range(2):
        index = np.random.permutation(steps)[:8]
        probs = Normal(actor(obs[index]), log_std.exp())
        new = probs.log_prob(actions[index]).sum(-1)
        ratio = (new - log_probs[index]).exp()
        with torch.no_grad():
            kl = ((ratio - 1) - ratio.log()).mean()
            clip_fractions += [((ratio - 1.0).abs() > 0.2).float().mean().item()]
        loss = -(advantages[index] * ratio).mean() + critic(obs[index]).square().mean()
        loss -= 0.01 * probs.entropy().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(actor.parameters(), 0.5)
        optimizer.step()
        if kl > target_kl:
            break
    print("SPS:", update, np.mean(clip_fractions), loss.item())
