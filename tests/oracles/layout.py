"""Binary arrays laid out as a decoder may meet them: at any alignment, and up to the end of what may be read."""

import ctypes
import mmap

import pyarrow as pa


def at_the_end(payloads, offset):
    """A binary array whose data begins at an address with this remainder by 16, and ends where no memory is.

    Bytes beneath a NULL before the last payload make up for the size. Reading on ends the process.
    """
    data = [payload or b"" for payload in payloads]
    padding = bytes((-offset - sum(map(len, data))) % 16)
    rows = [*payloads[:-1], None, payloads[-1]]
    data = [*data[:-1], padding, data[-1]]
    size = sum(map(len, data))
    room = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    memory = mmap.mmap(-1, room + mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    memory[room - size : room] = b"".join(data)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(address + room), mmap.PAGESIZE, 0) == 0
    begin = address + room - size
    assert begin % 16 == offset
    ends = [0]
    for one in data:
        ends.append(ends[-1] + len(one))
    valid = pa.array([row is not None for row in rows]).buffers()[1]
    buffers = [valid, pa.array(ends, pa.int32()).buffers()[1], pa.foreign_buffer(begin, size, memory)]
    return pa.Array.from_buffers(pa.binary(), len(rows), buffers)
