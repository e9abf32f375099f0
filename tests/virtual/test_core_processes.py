"""A virtual GPU in a process of its own: several GPUs, hollow ones, forks, and none."""

from .own_process import run


def test_each_gpu_has_its_own_tensors():
    assert run("""
virtual.enable(gpus=3, gpu="t4")
a, b = torch.ones(2, device="cuda:1"), torch.ones(2, device="cuda:2")
try:
    a + b
except RuntimeError as error:
    text = str(error)
with torch.cuda.device(1):
    inside = str(torch.ones(1, device="cuda").device)
print(json.dumps([
    torch.cuda.device_count(), torch.cuda.get_device_name(), str(b.to("cuda:1").add(a).device),
    inside, torch.cuda.memory_allocated(1), text,
]))
""") == [
        3,
        "Tesla T4",
        "cuda:1",
        "cuda:1",
        512,
        "Expected all tensors to be on the same device, but found at least two devices, "
        "cuda:1 and cuda:2!",
    ]


def test_the_current_device_is_the_threads():
    assert run("""
import threading
virtual.enable(gpus=2)
torch.cuda.set_device(1)
seen = []
thread = threading.Thread(target=lambda: seen.append(torch.cuda.current_device()))
thread.start()
thread.join()
print(json.dumps([torch.cuda.current_device(), *seen]))
""") == [1, 0]


def test_a_forked_child_is_refused_and_a_worker_without_cuda_is_not():
    assert run("""
virtual.enable()
torch.ones(1, device="cuda")
data = torch.utils.data.TensorDataset(torch.arange(4.0))
batches = [batch[0].cuda().tolist() for batch in
           torch.utils.data.DataLoader(data, batch_size=2, num_workers=2, pin_memory=True)]
reader, writer = os.pipe()
if os.fork() == 0:
    try:
        torch.ones(1, device="cuda")
    except RuntimeError as error:
        os.write(writer, str(error).encode())
    os._exit(0)
os.wait()
print(json.dumps([batches, os.read(reader, 1000).decode()]))
""") == [
        [[0, 1], [2, 3]],
        "Cannot re-initialize CUDA in forked subprocess. To use CUDA with multiprocessing, you "
        "must use the 'spawn' start method",
    ]


def test_disabled_gpus_are_gone_and_may_come_back():
    assert run("""
virtual.enable(gpus=2)
x = torch.ones(2, device="cuda")
virtual.disable()
gone = [torch.cuda.is_available(), torch.cuda.device_count()]
try:
    torch.ones(1, device="cuda")
except (AssertionError, RuntimeError) as error:
    gone.append(any(words in str(error) for words in ("CUDA enabled", "NVIDIA driver")))
del x
virtual.enable(gpus=1, gpu="t4")
total = torch.cuda.mem_get_info()[1] / 2**30
print(json.dumps([*gone, torch.cuda.get_device_name(), 14 < total < 16]))
""") == [False, 0, True, "Tesla T4", True]


def test_no_name_of_torch_changes_for_good():
    assert run("""
before = {name: id(value) for name, value in vars(torch._C).items()}
virtual.enable()
virtual.disable()
print(json.dumps({name: id(value) for name, value in vars(torch._C).items()} == before))
""")


def test_a_hollow_gpu_trains_without_bytes():
    loss, peak, resident = run("""
virtual.enable(hollow=True)
network = torch.nn.Sequential(torch.nn.Linear(20_000, 20_000, device="cuda"), torch.nn.ReLU())
optimizer = torch.optim.AdamW(network.parameters())
for _ in range(2):
    optimizer.zero_grad()
    with torch.autocast("cuda"):
        loss = network(torch.randn(8, 20_000).cuda()).float().pow(2).mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    optimizer.step()
print(json.dumps([loss.item(), torch.cuda.max_memory_allocated(), most_resident()]))
""")
    weight = 20_000 * 20_000 * 4
    assert loss == 0
    assert peak > 4 * weight
    assert resident < weight


def test_a_hollow_gpu_says_what_it_cannot_answer():
    text, printed = run("""
virtual.enable(hollow=True)
x = torch.ones(2, 3, device="cuda")
try:
    x[x > 0]
except NotImplementedError as error:
    print(json.dumps([str(error), str(x)]))
""")
    assert text.startswith("a hollow GPU has shapes but no values, and aten::index needs them")
    assert printed == "tensor(..., device='cuda:0', size=(2, 3))"


def test_foreach_answers_where_each_tensor_is():
    assert run("""
virtual.enable(gpus=2)
there = [torch.ones(2, device=f"cuda:{index}") for index in (0, 1)]
print(json.dumps([str(tensor.device) for tensor in torch._foreach_add(there, 1)]))
""") == ["cuda:0", "cuda:1"]


def test_data_parallel_spreads_a_batch():
    assert run("""
virtual.enable(gpus=2)
network = torch.nn.DataParallel(torch.nn.Linear(3, 2).cuda())
network(torch.ones(5, 3, device="cuda")).sum().backward()
print(json.dumps(network.module.weight.grad.tolist()))
""") == [[5, 5, 5], [5, 5, 5]]


def test_compiled_code_runs_as_written_and_says_so_once():
    assert run("""
virtual.enable()
compiled = torch.compile(lambda x: x * 2, mode="max-autotune")
torch.compile(lambda x: x + 1)
print(json.dumps(compiled(torch.ones(2, device="cuda")).tolist()))
""") == [2, 2]
