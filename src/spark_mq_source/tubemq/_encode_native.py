"""Messages to the bytes of their calls, compiled: Cython's pure-Python mode, C types in annotations.

The same interface, bytes and errors as ``_encode_python``, whose documentation holds here. What differs: the usual
message is written straight into one buffer for all; any other one is left to `encode_one`.
"""

import cython

if not cython.compiled:
    raise ImportError("spark_mq_source.tubemq._encode_native is not compiled")

from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cython.cimports.libc.stdlib import free, malloc, realloc
from cython.cimports.libc.string import memcpy

from spark_mq_source.tubemq.wire import BEGIN_TOKEN, BLOCK_BYTES

__all__ = ["encode_sends"]

_BLOCK_BYTES = cython.declare(cython.Py_ssize_t, BLOCK_BYTES)
_HEAD_BYTES = cython.declare(cython.Py_ssize_t, 16)
_SUM_AND_FLAG_BYTES = cython.declare(cython.Py_ssize_t, 8)
_TOKEN = cython.declare(bytes, BEGIN_TOKEN)


@cython.cfunc
@cython.inline
@cython.nogil
@cython.exceptval(check=False)
def _put_int(out: cython.p_uchar, value: cython.uint) -> cython.void:
    out[0] = value >> 24
    out[1] = (value >> 16) & 0xFF
    out[2] = (value >> 8) & 0xFF
    out[3] = value & 0xFF


@cython.cfunc
@cython.inline
def _put(out: cython.p_uchar, data: bytes) -> cython.p_uchar:
    size: cython.Py_ssize_t = PyBytes_GET_SIZE(data)
    memcpy(out, PyBytes_AS_STRING(data), size)
    return out + size


def encode_sends(calls, timeout_ms, encode_one, before_data, tail_of):
    """As `_encode_python.encode_sends`."""
    capacity: cython.Py_ssize_t = 1 << 16
    used: cython.Py_ssize_t = 0
    payload_bytes: cython.Py_ssize_t
    flag: cython.uchar
    check_sum: cython.uint
    out: cython.p_uchar
    buffer: cython.p_uchar = cython.cast(cython.p_uchar, malloc(capacity))
    grown: cython.p_uchar
    tail: bytes = b""
    if buffer == cython.NULL:
        raise MemoryError
    try:
        for serial_no, send in calls:
            client_id, topic_name, partition_id, data, a_flag, a_sum, sent_addr, msg_type, msg_time, auth_info = send
            before: bytes = b""
            payload_bytes = 0
            is_small = type(a_flag) is int and type(a_sum) is int and 0 <= a_flag < 0x80 and a_sum < 0x80000000
            if is_small and a_sum >= 0x10000000 and type(data) is bytes:
                tail = tail_of(sent_addr, msg_type, msg_time, auth_info)
                after: cython.Py_ssize_t = _SUM_AND_FLAG_BYTES + PyBytes_GET_SIZE(tail)
                before = before_data(client_id, topic_name, partition_id, PyBytes_GET_SIZE(data), after, timeout_ms)
                payload_bytes = PyBytes_GET_SIZE(before) + PyBytes_GET_SIZE(data) + after
            is_usual: cython.bint = 0 < payload_bytes <= _BLOCK_BYTES
            frame: bytes = b"" if is_usual else encode_one(serial_no, send, timeout_ms)
            needed: cython.Py_ssize_t = _HEAD_BYTES + payload_bytes if is_usual else PyBytes_GET_SIZE(frame)
            if capacity - used < needed:
                capacity = 2 * capacity + needed
                grown = cython.cast(cython.p_uchar, realloc(buffer, capacity))
                if grown == cython.NULL:
                    raise MemoryError
                buffer = grown
            out = buffer + used
            used += needed
            if not is_usual:
                _put(out, frame)
                continue
            out = _put(out, _TOKEN)
            _put_int(out, serial_no)
            _put_int(out + 4, 1)
            _put_int(out + 8, payload_bytes)
            out = _put(out + 12, before)
            out = _put(out, data)
            flag = a_flag
            check_sum = a_sum
            out[0] = 0x28
            out[1] = flag
            out[2] = 0x30
            out[3] = (check_sum & 0x7F) | 0x80
            out[4] = ((check_sum >> 7) & 0x7F) | 0x80
            out[5] = ((check_sum >> 14) & 0x7F) | 0x80
            out[6] = ((check_sum >> 21) & 0x7F) | 0x80
            out[7] = check_sum >> 28
            _put(out + _SUM_AND_FLAG_BYTES, tail)
        return PyBytes_FromStringAndSize(cython.cast(cython.p_char, buffer), used)
    finally:
        free(buffer)
