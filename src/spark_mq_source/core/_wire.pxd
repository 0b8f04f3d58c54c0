"""Bytes as the compiled loops read and write them: big-endian numbers, protobuf fields, UTF-8. All code is inline."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.string cimport memcpy


cdef struct Slice:  # absent if data is NULL
    unsigned char *data
    Py_ssize_t size


cdef struct Field:
    unsigned long long tag
    unsigned long long value  # of a varint
    Py_ssize_t start  # of bytes
    Py_ssize_t size


cdef inline Slice slice_of(bytes data) noexcept:
    """Return a slice of bytes that the caller keeps alive."""
    cdef Slice found
    found.data = <unsigned char *>PyBytes_AS_STRING(data)
    found.size = PyBytes_GET_SIZE(data)
    return found


cdef inline Py_ssize_t read_u32(const unsigned char *data) noexcept nogil:
    return <Py_ssize_t>data[0] << 24 | <Py_ssize_t>data[1] << 16 | <Py_ssize_t>data[2] << 8 | data[3]


cdef inline void write_u32(unsigned char *out, unsigned int value) noexcept nogil:
    out[0] = value >> 24
    out[1] = value >> 16 & 0xFF
    out[2] = value >> 8 & 0xFF
    out[3] = value & 0xFF


cdef inline Py_ssize_t read_varint(
    const unsigned char *data, Py_ssize_t at, Py_ssize_t end, unsigned long long *value
) noexcept nogil:
    """Return the end of the varint at `at`; -1 if it does not end before `end`, or within ten bytes."""
    cdef unsigned long long result = 0
    cdef int shift = 0
    cdef unsigned char byte
    if at < end and data[at] < 0x80:
        value[0] = data[at]
        return at + 1
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        result |= <unsigned long long>(byte & 0x7F) << shift
        if byte < 0x80:
            value[0] = result
            return at
        shift += 7
    return -1


cdef inline Py_ssize_t read_field(
    const unsigned char *data, Py_ssize_t at, Py_ssize_t end, Field *field
) noexcept nogil:
    """Return the end of the field at `at`, or a code of `protobuf_fields.CORRUPT_FIELDS`."""
    cdef int wire_type
    cdef unsigned long long size = 0
    at = read_varint(data, at, end, &field.tag)
    if at < 0:
        return -1
    if field.tag < 8 or field.tag >> 32:
        return -2
    wire_type = field.tag & 7
    if wire_type == 0:
        return read_varint(data, at, end, &field.value)
    if wire_type == 2:
        at = read_varint(data, at, end, &size)
        if at < 0:
            return -1
        if size > <unsigned long long>(end - at):
            return -3
        field.start = at
        field.size = <Py_ssize_t>size
        return at + field.size
    if wire_type == 1:
        at += 8
    elif wire_type == 5:
        at += 4
    else:
        return -4
    return -3 if at > end else at


cdef inline Py_ssize_t find_no_utf8(const unsigned char *data, Py_ssize_t size) noexcept nogil:
    """Return the start of the first sequence that is not UTF-8 for Python's strict decoder; -1 if there is none."""
    cdef Py_ssize_t at = 0, more, i
    cdef unsigned long long word
    cdef unsigned char first, second
    while at < size:
        if size - at >= 8:
            memcpy(&word, data + at, 8)
            if not word & 0x8080808080808080ULL:
                at += 8
                continue
        first = data[at]
        if first < 0x80:
            at += 1
            continue
        if first < 0xC2 or first > 0xF4:
            return at
        more = 1 + (first >= 0xE0) + (first >= 0xF0)
        if size - at <= more:
            return at
        second = data[at + 1]
        # The second byte reveals overlong forms, surrogates, and code points beyond U+10FFFF.
        if (
            (first == 0xE0 and second < 0xA0)
            or (first == 0xED and second > 0x9F)
            or (first == 0xF0 and second < 0x90)
            or (first == 0xF4 and second > 0x8F)
        ):
            return at
        for i in range(1, more + 1):
            if data[at + i] & 0xC0 != 0x80:
                return at
        at += more + 1
    return -1
