"""Where tensors live, what moving one costs, and the error when two do not live together.

anydevice run --gpus 2 examples/devices_and_mismatches.py
"""

import torch

print(f"{torch.cuda.device_count()} GPUs:")
for i in range(torch.cuda.device_count()):
    card = torch.cuda.get_device_properties(i)
    print(
        f"  cuda:{i}  {card.name}, {card.total_memory / 2**30:.0f} GiB, "
        f"{card.multi_processor_count} multiprocessors"
    )

x = torch.arange(4.0)  # on the CPU, unless something says otherwise
y = x.to("cuda:0")  # a copy; x stays where it is
print("x is on", x.device, "and y on", y.device)
print("x + y.cpu() is on", (x + y.cpu()).device)

# An op wants all its tensors on one device. A number goes along, even as a tensor.
print("y + 1 is on", (y + 1).device, "and y * torch.tensor(2.0) on", (y * torch.tensor(2.0)).device)


def shown(name, work):
    """Prints the first line of the error that `work` raises."""
    try:
        work()
    except (RuntimeError, TypeError) as error:
        print(f"{name}\n    {type(error).__name__}: {str(error).splitlines()[0]}")


layer = torch.nn.Linear(4, 2).to("cuda:0")
shown("x + y", lambda: x + y)
shown("layer(x), and the layer is on cuda:0", lambda: layer(x))
shown("y + z, and z is on cuda:1", lambda: y + torch.ones(4, device="cuda:1"))
shown("y.numpy()", y.numpy)
shown("torch.ones(1, device='cuda:7')", lambda: torch.ones(1, device="cuda:7"))

# The fix: choose the device once, and make or move everything there.
device = torch.device("cuda:1")
layer, x = layer.to(device), x.to(device)
print("layer(x) is on", layer(x).device)
with torch.device(device):
    print("made inside `with torch.device(...)`: on", torch.zeros(2).device)
