"""Frames of the protocol between routers and shards.

    0   2 bytes  "vR"
    2   u8       version of the protocol
    3   u8       kind
    4   u32      number of the request, chosen by the client; 0 if there is none
    8   u32      microseconds until its deadline (SEARCH, EACH and CALL), else 0
    12  u32      bytes of the head
    16  u32      bytes of the body
    20  head, msgpack
    …   body: arrays, little-endian

A connection begins with HELLO from the client and WELCOME or REFUSAL from the shard. Each SEARCH or CALL is
answered by one REPLY or FAILURE, in any order, unless a CANCEL came first. A violation ends the connection
after a REFUSAL.

An EACH carries several requests of one query: the first row has the number of the frame, each further row the
next number. Each is answered, and may be canceled, separately; simultaneous answers share one REPLIES.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from velo_serving.protocol.errors import FrameTooLargeError, ProtocolError, ProtocolVersionError

PROTOCOL: Final = 4

HELLO: Final = 1
WELCOME: Final = 2
REFUSAL: Final = 3
SEARCH: Final = 4
CALL: Final = 5
REPLY: Final = 6
FAILURE: Final = 7
CANCEL: Final = 8
EACH: Final = 9
REPLIES: Final = 10

#: Of a request; the next number is the first again.
NUMBER_MAX: Final = (1 << 32) - 1

_KINDS: Final = range(HELLO, REPLIES + 1)
_MAGIC: Final = b"vR"
_START: Final = struct.Struct("<2sBBIIII")
HEAD_BYTES: Final = _START.size


class Frame(NamedTuple):
    """One frame that arrived."""

    kind: int
    request: int
    timeout_us: int
    head: bytes
    body: bytes


def frame_start(
    kind: int, request: int, head_bytes: int, body_bytes: int = 0, *, timeout_us: int = 0
) -> bytes:
    return _START.pack(_MAGIC, PROTOCOL, kind, request, timeout_us, head_bytes, body_bytes)


class FrameReader:
    """Splits a byte stream into frames of at most ``bytes_max``."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._rest = bytearray()
        self._bytes_due = HEAD_BYTES  # bytes that must be there before a look is worth it

    @property
    def within_frame(self) -> bool:
        return bool(self._rest)

    def feed(self, data: bytes) -> list[Frame]:
        rest = self._rest
        if rest:
            rest += data
            if len(rest) < self._bytes_due:
                return []
            frames, used = self._cut(bytes(rest))
            del rest[:used]
            return frames
        frames, used = self._cut(data)
        if used < len(data):
            rest += memoryview(data)[used:]
        return frames

    def _cut(self, data: bytes) -> tuple[list[Frame], int]:
        frames: list[Frame] = []
        place, end = 0, len(data)
        self._bytes_due = HEAD_BYTES
        while end - place >= HEAD_BYTES:
            magic, version, kind, request, left_us, head_bytes, body_bytes = _START.unpack_from(data, place)
            if magic != _MAGIC:
                raise ProtocolError(f"a frame begins with {magic!r}, not with {_MAGIC!r}")
            if version != PROTOCOL:
                raise ProtocolVersionError(f"the other side uses protocol version {version}, not {PROTOCOL}")
            if kind not in _KINDS:
                raise ProtocolError(f"there is no kind {kind} of frame")
            if head_bytes + body_bytes > self.bytes_max:
                raise FrameTooLargeError(
                    f"a frame of {head_bytes + body_bytes} bytes is above the limit of {self.bytes_max}"
                )
            begin = place + HEAD_BYTES
            middle = begin + head_bytes
            stop = middle + body_bytes
            if stop > end:
                self._bytes_due = stop - place
                break
            frames.append(Frame(kind, request, left_us, data[begin:middle], data[middle:stop]))
            place = stop
        return frames, place
