"""What is raised when anydevice is used in a way that cannot work; its text is one sentence."""


class UsageError(ValueError):
    """Wrong use: says what was expected, what came, and what to do. The CLI ends with code 2."""
