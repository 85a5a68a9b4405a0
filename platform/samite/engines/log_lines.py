"""From the bytes of a growing log to text lines, for every engine.

Logs are bytes from programs that die at any point: a read may end inside a character or a line, bytes may not be UTF-8, and a line may be
megabytes long. What acts on a terminal is the CLI's business, not this module's.
"""

import codecs
from collections.abc import Iterator

MAX_LINE_CHARACTERS = 20_000
"""A longer line is given out in pieces of at least this size, so that a log of one endless line is shown all the same."""


class LineDecoder:
    """Bytes in, whole lines out. Multi-byte characters and lines cut at a border wait for the next bytes."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def feed(self, data: bytes) -> Iterator[str]:
        """The lines that `data` completes, without their newline."""
        *whole, self._rest = (self._rest + self._decoder.decode(data)).split("\n")
        yield from whole
        if len(self._rest) > MAX_LINE_CHARACTERS:
            yield self._rest
            self._rest = ""

    def flush(self) -> Iterator[str]:
        """The unfinished line, if there is one: nothing more will come."""
        if self._rest:
            yield self._rest
            self._rest = ""
