"""The run: a program on hollow GPUs, in a process forked for it."""
