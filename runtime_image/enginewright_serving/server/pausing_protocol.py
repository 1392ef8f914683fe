"""A connection that stops and resumes reading, as HTTP/1.1 and HTTP/2 share it."""

import asyncio


class PausingProtocol(asyncio.BufferedProtocol):
    """Reads from its transport, or does not."""

    __slots__ = ("_reading_paused", "_transport")

    def __init__(self) -> None:
        """Be without a transport."""
        self._reading_paused = False
        self._transport: asyncio.Transport | None = None

    def _pause_reading(self) -> None:
        if not self._reading_paused and self._transport is not None:
            self._reading_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        transport = self._transport
        if not self._reading_paused or transport is None:
            return
        if not transport.is_closing():
            self._reading_paused = False
            transport.resume_reading()
