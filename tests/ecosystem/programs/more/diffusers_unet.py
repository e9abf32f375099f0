"""diffusers: U-Nets and an autoencoder from configurations: python diffusers_unet.py cuda."""

import json
import sys

import torch
from diffusers import AutoencoderKL, DDPMPipeline, DDPMScheduler, UNet2DConditionModel, UNet2DModel

device = sys.argv[1]
torch.manual_seed(0)
small = {"block_out_channels": (8, 16), "layers_per_block": 1, "norm_num_groups": 4}
plain = UNet2DModel(
    sample_size=8,
    in_channels=1,
    out_channels=1,
    down_block_types=("DownBlock2D", "AttnDownBlock2D"),
    up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    attention_head_dim=8,
    **small,
).to(device)
told = UNet2DConditionModel(
    sample_size=8,
    down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
    up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
    cross_attention_dim=16,
    attention_head_dim=8,
    **small,
).to(device)
coder = AutoencoderKL(block_out_channels=(8,), norm_num_groups=4).to(device)
image, noise, text = torch.randn(2, 1, 8, 8), torch.randn(2, 1, 8, 8), torch.randn(2, 5, 16)
latent, picture, when = torch.randn(2, 4, 8, 8), torch.randn(1, 3, 16, 16), torch.tensor([3, 7])
image, noise, text, latent, picture, when = (
    tensor.to(device) for tensor in (image, noise, text, latent, picture, when)
)
schedule = DDPMScheduler(10)
optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2)
numbers = []
for _ in range(2):
    guess = plain(schedule.add_noise(image, noise, when), when).sample
    loss = torch.nn.functional.mse_loss(guess, noise)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    numbers.append(loss.item())
pipeline = DDPMPipeline(plain, schedule).to(device)
pipeline.set_progress_bar_config(disable=True)
made = pipeline(num_inference_steps=3, generator=torch.Generator().manual_seed(0), output_type="np")
pipeline(num_inference_steps=3, generator=torch.Generator(device).manual_seed(0))
with torch.no_grad():
    numbers += [float(made.images.sum()), told(latent, when, text).sample.sum().item()]
    numbers.append(coder(picture).sample.sum().item())
print(json.dumps({"numbers": numbers, "device": guess.device.type}))
