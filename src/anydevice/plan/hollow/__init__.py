"""The run itself: a program on a hollow GPU, in a process that is forked for it."""
