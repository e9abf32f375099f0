import torch

side = torch.cuda.Stream()
x = torch.randn(1024, 1024, device="cuda")
for step in range(5):
    y = x @ x
    side.wait_stream(torch.cuda.current_stream())  # good
    with torch.cuda.stream(side):
        z = y.relu()  # bad: stream-race
        z = y.relu()  # good
    torch.cuda.current_stream().wait_stream(side)
    x = z + 1
