"""A rank that dies at the first attempt: torchrun starts all of them again."""

import os
import sys
from pathlib import Path

import torch.distributed as dist
from checks import GPU, RANK, RANKS, begin, on_gpu

attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
begin(device_id=GPU)
mine = on_gpu(1)
dist.all_reduce(mine)
if attempt == 0 and RANK == 1:
    sys.exit(3)
dist.all_reduce(mine)
assert mine.item() == RANKS**2
Path(os.environ["REPORTS"], f"{RANK}.json").write_text(f"[{attempt}, {{}}]")
dist.destroy_process_group()
