"""Notices to the user: a fallback is announced once, in one line on stderr."""

import logging
from functools import cache

# Without any logging set up, Python prints warnings of this logger on stderr, text only.
log = logging.getLogger("anydevice")


@cache
def say_once(sentence: str) -> None:
    """Log a sentence at level WARNING, the first time in this process."""
    log.warning(sentence)
