"""The command `anydevice`, which is `python -m anydevice` too."""

import sys


def main() -> None:
    """Run the command; `run` does not wait for what the others need to load."""
    if sys.argv[1:2] == ["run"]:
        from anydevice.virtual.process import launch

        launch.main(sys.argv[2:])
    from anydevice import cli

    cli.main()


if __name__ == "__main__":
    main()
