"""`python -m anydevice` is the command `anydevice`."""

from anydevice.cli import main

main()
