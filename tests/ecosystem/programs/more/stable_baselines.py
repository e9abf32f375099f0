"""stable-baselines3: DQN on CartPole, saved and loaded: python stable_baselines.py cuda."""

import json
import sys
import tempfile

from stable_baselines3 import A2C, DQN, PPO

device = sys.argv[1]
agent = DQN("MlpPolicy", "CartPole-v1", device=device, seed=0, learning_starts=20, batch_size=16)
agent.learn(200)
with tempfile.TemporaryDirectory() as folder:
    agent.save(f"{folder}/agent")
    agent = DQN.load(f"{folder}/agent", device=device)
numbers = [weight.abs().sum().item() for weight in agent.policy.parameters()]
for kind in (A2C, PPO):  # these draw their actions on the GPU, so their digits are a card's own
    kind("MlpPolicy", "CartPole-v1", device=device, n_steps=32, seed=0).learn(64)
print(json.dumps({"numbers": numbers, "device": agent.device.type}))
