"""Messages between ranks: a checked, versioned, binary format. No pickle, no code, no pointers.

Messages travel on *channels*. ``HELLO`` is JSON text, so that ranks of other versions and byte orders can report
the difference. It is sent once in each direction. ``CONTROL`` carries commands of rank 0 and answers of the
others. ``DATA`` carries only bytes of tensors. A copy between two ranks is one message of exactly its bytes, or
one for each `MAX_DATA` bytes of it (`pieces_of`). Each is a transfer of its own.
``POISON`` replaces data that a rank does not have because of an earlier failure: i32 status, i32 the rank whose
end is the reason (-1: none), text. ``ASKED`` is an empty message to the source of data. Its sender waits for the
data and does nothing else until they arrive.

Between two ranks, data arrive in the order of the requests. The tag (`tag_of`) holds the channel and the lowest
bits of the transfer's number, which ``TAKE`` and ``GIVE`` carry, too. So the receiver recognizes data whose request
an interrupt of rank 0 has cancelled, and does not mistake them for other data.

A control message is a header and a body::

    4 bytes magic   u16 protocol   u16 kind   u64 number   u32 length of the body   body

The body of ``COMMANDS``, the only long kind, is a list of commands: u8 command, 3 bytes zero, u32 length, the
fixed-size fields of the command, and optional bytes behind them. A rank executes the commands of all messages
in order, and answers each message with ``DONE``. A repeated message is ignored. All numbers are little-endian.

A failure belongs to a *queue*, the number of a device: the device of the graph that was computed, of the memory
that was set, or of the run that requested a copy. From then on that queue computes nothing and sends only
``POISON``, until ``CLEAR``. Other queues continue. Commands with `NO_QUEUE` belong to no run and are always
executed.

Received messages are not trusted. The reader checks magic, protocol, kind and all lengths
(:class:`MessageError`). The executor of a command checks its fields.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from .._base.errors import DeviceError

__all__ = [
    "ASKED", "CONTROL", "DATA", "HELLO", "NO_QUEUE", "POISON", "Command", "Kind", "Message", "MessageError", "What",
]  # fmt: skip

HELLO, CONTROL, DATA, POISON, ASKED = 1, 2, 3, 4, 5  # channels
N_CHANNELS, N_MARKS = 8, 4096  # their product fits the tags of every MPI

MAGIC = b"gbCl"
PROTOCOL = 4
NO_QUEUE = 0xFFFFFFFF
MAX_CONTROL = 64 << 20  #: bytes of one control message
MAX_COMMAND = MAX_CONTROL - (1 << 16)  #: bytes behind the fields of one command
MAX_HELLO = 1 << 16
MAX_TEXT = 4096  #: bytes of one text in a message
MAX_DATA = 256 << 20  #: bytes of one message of data; MPI counts the bytes of a message in an int
MAX_MESSAGE = (1 << 31) - 1  #: bytes of any message
_HEADER = struct.Struct("<4sHHQI")
_COMMAND = struct.Struct("<B3xI")


class MessageError(DeviceError):
    """An invalid message, or one with an impossible request."""


class Kind:
    """Kinds of control messages."""

    # from rank 0
    COMMANDS = 1  # executed in order; the number is that of the message, from 1 up
    LOST = 2  # the number is that of a lost rank, which sends nothing any more
    PING = 3  # answered at once by PONG with the same number
    BYE = 4
    # to rank 0
    DONE = 16  # all messages up to that number are done
    FAILED = 17  # of that message: i32 status, i32 lost rank (-1: none), u32 queue, u32 number of the command, text
    BEAT = 18  # alive, executing that message: i32 the rank it waits for (-1: none), u8 1: it waits for that rank to
    # receive, 0: for data of that rank, u64 ns of waiting
    ANSWER = 19  # to the question of that number; the command defines the body
    PONG = 20  # u64 ns on the clock of the rank


class What:
    """Commands. A comment gives the fields of a command and what follows them."""

    OPEN = 1  # question, device: opens a backend; its name follows. The answer: u8 0, u64 alignment, u64 largest, name
    ALLOC = 2  # question, device, memory, bytes. The answer: i32 status, text
    FREE = 3  # memory
    FILL = 4  # memory, value
    PUT = 5  # memory, offset: the bytes follow
    TAKE = 6  # queue, rank, transfer, memory, offset, bytes: data of that rank
    GIVE = 7  # queue, rank, transfer, memory, offset, bytes: as data to that rank
    COPY = 8  # queue, memory, offset, memory, offset, bytes: from the second to the first
    GRAPH = 9  # device, graph: nodes follow (_nodes.py)
    RUN = 10  # graph
    DROP = 11  # graph
    ASK = 12  # question, device: one node follows. The answer: the reason for a refusal, or nothing
    MARK = 13  # question. The answer: u64 ns on the clock of the rank at this command
    FILE = 14  # question, memory, offset, bytes, offset in the file, hash: a path follows. The answer: i32 status, text
    CLEAR = 15  # queue: rank 0 has handled its failure
    KEEP = 16  # memory, offset, bytes, hash: into the cache, if there is one
    CLOSE = 17  # device
    WORK = 18  # question, device: nodes follow. The answer: i32 status, u64 bytes of scratch memory or a text


FIELDS: dict[int, struct.Struct] = {
    What.OPEN: struct.Struct("<QI"),
    What.ALLOC: struct.Struct("<QIQQ"),
    What.FREE: struct.Struct("<Q"),
    What.FILL: struct.Struct("<QB"),
    What.PUT: struct.Struct("<QQ"),
    What.TAKE: struct.Struct("<IIQQQQ"),
    What.GIVE: struct.Struct("<IIQQQQ"),
    What.COPY: struct.Struct("<IQQQQQ"),
    What.GRAPH: struct.Struct("<IQ"),
    What.RUN: struct.Struct("<Q"),
    What.DROP: struct.Struct("<Q"),
    What.ASK: struct.Struct("<QI"),
    What.MARK: struct.Struct("<Q"),
    What.FILE: struct.Struct("<QQQQQ32s"),
    What.CLEAR: struct.Struct("<I"),
    What.KEEP: struct.Struct("<QQQ32s"),
    What.CLOSE: struct.Struct("<I"),
    What.WORK: struct.Struct("<QI"),
}
_NOTHING = memoryview(b"")
_HAS_MORE = frozenset((What.OPEN, What.PUT, What.GRAPH, What.ASK, What.FILE, What.WORK))
_BEGIN = _COMMAND.size
_READERS = {what: (fields.size, fields.unpack_from, what in _HAS_MORE) for what, fields in FIELDS.items()}
_tuple = tuple.__new__  # makes a NamedTuple in half the time of its own constructor
_KINDS = frozenset(v for k, v in vars(Kind).items() if k.isupper())
ANSWER_STATUS = struct.Struct("<i")
BEAT_BODY = struct.Struct("<iBQ")
CLOCK = struct.Struct("<Q")
OPENED = struct.Struct("<BQQ")
LOSS = struct.Struct("<iiII")
POISON_BODY = struct.Struct("<ii")


class Message(NamedTuple):
    """A received control message."""

    kind: int
    number: int
    body: memoryview


class Command(NamedTuple):
    """One command of a message: its kind, its fields, and the bytes behind them. ``end``: the
    offset of its end."""

    what: int
    fields: tuple[Any, ...]
    more: memoryview
    end: int


def message(kind: int, number: int, body: bytes | bytearray | memoryview = b"") -> bytes:
    return b"".join((_HEADER.pack(MAGIC, PROTOCOL, kind, number, len(body)), body))


def read_message(data: bytes | bytearray | memoryview) -> Message:
    """Parses a message. Raises MessageError if it is invalid."""
    view = memoryview(data)
    if len(view) < _HEADER.size:
        raise MessageError(f"a message of {len(view)} bytes is shorter than a header")
    magic, protocol, kind, number, length = _HEADER.unpack_from(view)
    if magic != MAGIC or protocol != PROTOCOL:
        raise MessageError(f"a message begins with {bytes(magic)!r}, protocol {protocol}, not {MAGIC!r}, {PROTOCOL}")
    if kind not in _KINDS:
        raise MessageError(f"unknown kind of message {kind}")
    if length != len(view) - _HEADER.size:
        raise MessageError(f"the header of a message of {len(view) - _HEADER.size} bytes gives its length as {length}")
    return Message(kind, number, view[_HEADER.size :])


def command(what: int, *fields: Any, more: bytes | bytearray | memoryview = b"") -> bytes:
    body = FIELDS[what]
    return b"".join((_COMMAND.pack(what, body.size + len(more)), body.pack(*fields), more))


_GIVE_OR_TAKE = struct.Struct(f"{_COMMAND.format}{FIELDS[What.GIVE].format[1:]}")
_LENGTH = FIELDS[What.GIVE].size


def give(queue: int, rank: int, transfer: int, memory: int, offset: int, nbytes: int) -> bytes:
    """A faster ``command(What.GIVE, ...)``, for the cuts of a graph."""
    return _GIVE_OR_TAKE.pack(What.GIVE, _LENGTH, queue, rank, transfer, memory, offset, nbytes)


def take(queue: int, rank: int, transfer: int, memory: int, offset: int, nbytes: int) -> bytes:
    return _GIVE_OR_TAKE.pack(What.TAKE, _LENGTH, queue, rank, transfer, memory, offset, nbytes)


def commands_of(body: memoryview, at: int = 0) -> Iterator[Command]:
    """The commands of a message, from the one that begins at ``at``. MessageError as soon as one is malformed."""
    size = len(body)
    while at < size:
        if size - at < _BEGIN:
            raise MessageError(f"{size - at} bytes at the end of a message are too few for a command")
        what, length = _COMMAND.unpack_from(body, at)
        known = _READERS.get(what)
        at += _BEGIN
        if known is None:
            raise MessageError(f"unknown command {what}")
        least, unpack, has_more = known
        end = at + length
        if end > size or length < least or (length > least and not has_more):
            raise MessageError(f"command {what} claims {length} bytes, but only {size - at} are left")
        more = _NOTHING if length == least else body[at + least : end]
        yield _tuple(Command, (what, unpack(body, at), more, end))
        at = end


def pieces_of(nbytes: int) -> list[tuple[int, int]]:
    """The messages that carry data: offset and size of each. Empty data need one message."""
    return [(at, min(MAX_DATA, nbytes - at)) for at in range(0, nbytes, MAX_DATA)] or [(0, 0)]


def expect_short(tag: int, nbytes: int) -> None:
    """Raises DeviceError for a message that is too long for a transport."""
    most = MAX_DATA if tag % N_CHANNELS == DATA else MAX_MESSAGE
    if nbytes > most:
        raise DeviceError(f"a message of {nbytes} bytes exceeds the limit of {most}")


def tag_of(channel: int, transfer: int) -> int:
    """The tag of a channel and a transfer."""
    return channel + N_CHANNELS * (transfer % N_MARKS)


def text_of(data: bytes | memoryview) -> str:
    return str(bytes(data[:MAX_TEXT]), "utf-8", "replace")


def text_bytes(text: str) -> bytes:
    return text.encode("utf-8", "replace")[:MAX_TEXT]


def hello(facts: dict[str, Any]) -> bytes:
    return json.dumps({"magic": "ggml_backend cluster", "protocol": PROTOCOL, **facts}).encode("ascii")


def read_hello(data: bytes | bytearray | memoryview) -> dict[str, Any]:
    """Parses a greeting. MessageError if it is invalid. The caller compares versions."""
    try:
        facts = json.loads(bytes(data)) if len(data) <= MAX_HELLO else None
    except (ValueError, RecursionError):
        facts = None
    if not isinstance(facts, dict) or facts.get("magic") != "ggml_backend cluster":
        raise MessageError("received an invalid greeting: does another program run in this MPI job?")
    return facts
