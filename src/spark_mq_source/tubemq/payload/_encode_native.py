"""Messages to the bytes of their calls, and the answers that say they are stored: compiled.

Cython's pure-Python mode, C types in annotations. The same interface, bytes and errors as ``_encode_python``, whose
documentation holds here. What differs: the usual message is written straight into one buffer for all; any other one is
left to `encode_one`.
"""

import cython

if not cython.compiled:
    raise ImportError("spark_mq_source.tubemq.payload._encode_native is not compiled")

from cython.cimports.cpython.buffer import PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cython.cimports.libc.stdlib import free
from cython.cimports.libc.string import memcmp, memcpy
from cython.cimports.spark_mq_source.core._checked import must
from cython.cimports.spark_mq_source.core._columns_native import resize
from cython.cimports.spark_mq_source.core._wire import read_u32, write_u32

from spark_mq_source.tubemq.payload.layout import SHORT_BYTES
from spark_mq_source.tubemq.protocol.wire import BEGIN_TOKEN, BLOCK_BYTES, ONE_BLOCK

_BLOCK_BYTES = cython.declare(cython.Py_ssize_t, BLOCK_BYTES)
_HEAD_BYTES = cython.declare(cython.Py_ssize_t, ONE_BLOCK.size)
_SUM_AND_FLAG_BYTES = cython.declare(cython.Py_ssize_t, 8)
_SHORT_BYTES = cython.declare(cython.Py_ssize_t, SHORT_BYTES)
_TOKEN = cython.declare(bytes, BEGIN_TOKEN)


@cython.cfunc
@cython.inline
def _put(out: cython.p_uchar, data: bytes) -> cython.p_uchar:
    size: cython.Py_ssize_t = PyBytes_GET_SIZE(data)
    memcpy(out, PyBytes_AS_STRING(data), size)
    return out + size


def encode_sends(calls, timeout_ms, encode_one, before_data, tail_of):
    """As `_encode_python.encode_sends`."""
    try:
        return _encode_sends(calls, timeout_ms, encode_one, before_data, tail_of)
    except (TypeError, ValueError, AttributeError, OverflowError):
        # Of a message that does not fit the protocol, `encode_one` says why.
        return b"".join([encode_one(serial_no, send, timeout_ms) for serial_no, send in calls])


@cython.cfunc
def _encode_sends(calls, timeout_ms, encode_one, before_data, tail_of):
    capacity: cython.Py_ssize_t = 1 << 16
    used: cython.Py_ssize_t = 0
    payload_bytes: cython.Py_ssize_t
    flag: cython.uchar
    check_sum: cython.uint
    out: cython.p_uchar
    buffer: cython.p_uchar = cython.cast(cython.p_uchar, resize(cython.NULL, capacity))
    tail: bytes = b""
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
                buffer = cython.cast(cython.p_uchar, resize(buffer, capacity))
            out = buffer + used
            used += needed
            if not is_usual:
                _put(out, frame)
                continue
            out = _put(out, _TOKEN)
            write_u32(out, serial_no)
            write_u32(out + 4, 1)
            write_u32(out + 8, payload_bytes)
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
            out = _put(out + _SUM_AND_FLAG_BYTES, tail)
            must(out == buffer + used, "a call has another size than was computed")
        return PyBytes_FromStringAndSize(cython.cast(cython.p_char, buffer), used)
    finally:
        free(buffer)


@cython.cfunc
@cython.inline
def _begins_so(payload: cython.p_uchar, size: cython.Py_ssize_t, beginnings: tuple) -> cython.bint:
    at: cython.Py_ssize_t
    for place, part in beginnings:
        at = place
        part_bytes: bytes = part
        if at + PyBytes_GET_SIZE(part_bytes) > size:
            return False
        if memcmp(payload + at, PyBytes_AS_STRING(part_bytes), PyBytes_GET_SIZE(part_bytes)) != 0:
            return False
    return True


def take_stored(data, offset: cython.Py_ssize_t, beginnings: tuple):
    """As `_encode_python.take_stored`."""
    view: cython.Py_buffer
    at: cython.p_uchar
    size: cython.Py_ssize_t
    serial_nos: list = []
    PyObject_GetBuffer(data, cython.address(view), PyBUF_SIMPLE)
    try:
        while view.len - offset >= _HEAD_BYTES:
            at = cython.cast(cython.p_uchar, view.buf) + offset
            size = read_u32(at + 12)
            if memcmp(at, PyBytes_AS_STRING(_TOKEN), 4) != 0 or read_u32(at + 8) != 1:
                break
            if size >= _SHORT_BYTES or view.len - offset - _HEAD_BYTES < size:
                break
            if not _begins_so(at + _HEAD_BYTES, size, beginnings):
                break
            serial_nos.append(cython.cast(cython.int, read_u32(at + 4)))
            offset += _HEAD_BYTES + size
    finally:
        PyBuffer_Release(cython.address(view))
    return serial_nos, offset
