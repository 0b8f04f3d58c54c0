"""JSON as the compiled decoder reads it: characters, and the steps as C structs.

Functions over text take its start and end, and return the position where they stopped; NULL if it is not JSON.
"""

from libc.string cimport memcmp, memcpy

from spark_mq_source.core._wire cimport Slice
from spark_mq_source.values._loops_native cimport RowDecoder
from spark_mq_source.values._tree_native cimport Node


cdef extern from "Python.h":
    double PyOS_string_to_double(const char *text, char **end, void *overflow) except? -1.0


cdef extern from *:
    """
    // Eight characters are compared at once on machines where the first one is the lowest byte of a word.
    #if defined(__GNUC__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    #define SPARK_MQ_HAS_WORDS 1
    #define spark_mq_first_byte(word) (__builtin_ctzll(word) >> 3)
    #else
    #define SPARK_MQ_HAS_WORDS 0
    #define spark_mq_first_byte(word) 0
    #endif
    """
    const bint HAS_WORDS "SPARK_MQ_HAS_WORDS"
    int first_byte "spark_mq_first_byte"(unsigned long long word) nogil  # the lowest byte that is not 0


# The kinds of values that the steps of `json.steps` read, which have them by name.
cpdef enum Code:
    NOTHING
    BOOLEAN
    INT
    FLOAT
    DOUBLE
    DECIMAL
    TEXT
    BINARY
    DATE
    TIMESTAMP
    STRUCT
    LIST
    MAP


cdef struct Key:
    Slice text
    Slice written  # as JSON
    int slot  # the index of its field; negative if it is not wanted


cdef struct Step:
    Code code
    Step *steps  # `count` steps of a struct, or one step
    Py_ssize_t count
    Key *keys  # of a struct: all that are known, in the order of the schema
    int num_keys
    int *buckets  # the index of a key by its hash; negative for none
    unsigned int mask
    long long lowest  # of numbers
    long long highest
    long long factor
    int precision
    int scale
    bint has_zone
    bint has_seconds
    long long unit_ns


cdef class JsonDecoder(RowDecoder):
    cdef object described
    cdef Step *steps
    cdef Py_ssize_t num_steps
    cdef list owned
    cdef readonly Py_ssize_t moved  # values moved because a map had equal keys
    cdef unsigned char *scratch
    cdef Py_ssize_t room
    cdef unsigned char *text  # of `read_text`
    cdef Py_ssize_t size

    cdef int lay_out(self, Step *step, described) except -1
    cdef int reserve(self, Py_ssize_t size) except -1
    cdef int find(self, Step *step, unsigned char *key, Py_ssize_t size, bint is_escaped) except -2
    cdef unsigned char *read(self, Step *step, Node *node, unsigned char *at, unsigned char *end, int depth) except? NULL
    cdef unsigned char *read_struct(
        self, Step *step, Node *node, unsigned char *at, unsigned char *end, int depth
    ) except? NULL
    cdef unsigned char *read_list(
        self, Step *step, Node *node, unsigned char *at, unsigned char *end, int depth
    ) except? NULL
    cdef unsigned char *read_map(
        self, Step *step, Node *node, unsigned char *at, unsigned char *end, int depth
    ) except? NULL
    cdef unsigned char *read_scalar(
        self, Step *step, Node *node, unsigned char *at, unsigned char *end, int depth
    ) except? NULL
    cdef unsigned char *read_text(self, unsigned char *at, unsigned char *end) except? NULL
    cdef unsigned char *read_double(self, unsigned char *at, unsigned char *end, double *value) except? NULL
    cdef bint put_decimal(self, const Step *step, Node *node, unsigned char *text, Py_ssize_t size) except -1


cdef inline unsigned char *skip_space(unsigned char *at, unsigned char *end) noexcept nogil:
    while at < end and at[0] <= c' ' and (at[0] == c' ' or at[0] == c'\n' or at[0] == c'\r' or at[0] == c'\t'):
        at += 1
    return at


cdef inline bint is_digit(unsigned char character) noexcept nogil:
    return <unsigned char>(character - c'0') < 10


cdef inline unsigned char *skip_digits(unsigned char *at, unsigned char *end) noexcept nogil:
    while at < end and is_digit(at[0]):
        at += 1
    return at


cdef inline unsigned char *read_digits(unsigned char *at, unsigned char *end, unsigned long long *number) noexcept nogil:
    """Append digits to a number, modulo 2^64."""
    while at < end and is_digit(at[0]):
        number[0] = number[0] * 10 + (at[0] - c'0')
        at += 1
    return at


cdef inline unsigned char *skip_word(
    unsigned char *at, unsigned char *end, const char *word, Py_ssize_t size
) noexcept nogil:
    return at + size if end - at >= size and memcmp(at, word, size) == 0 else NULL


cdef inline bint begins(const unsigned char *at, unsigned char *end, const Slice *text) noexcept nogil:
    return end - at >= text.size and at[1] == text.data[1] and memcmp(at, text.data, text.size) == 0


cdef inline unsigned char *find_special(unsigned char *at, unsigned char *end) noexcept nogil:
    """Return the first quote, backslash or control character."""
    cdef unsigned long long word, quote, backslash, found
    while HAS_WORDS and end - at >= 8:
        memcpy(&word, at, 8)
        # The lowest byte found is reliable; higher bytes may be wrong.
        quote = word ^ 0x2222222222222222ULL
        backslash = word ^ 0x5C5C5C5C5C5C5C5CULL
        found = (
            ((quote - 0x0101010101010101ULL) & ~quote)
            | ((backslash - 0x0101010101010101ULL) & ~backslash)
            | ((word - 0x2020202020202020ULL) & ~word)
        ) & 0x8080808080808080ULL
        if found:
            at += first_byte(found)
            break
        at += 8
    while at < end and at[0] != c'"' and at[0] != c'\\' and at[0] >= 0x20:
        at += 1
    return at


cdef inline int hex_digit(unsigned char character) noexcept nogil:
    if is_digit(character):
        return character - c'0'
    character |= 0x20
    return character - c'a' + 10 if c'a' <= character <= c'f' else -1


cdef inline int hex_number(unsigned char *at) noexcept nogil:
    """Return the number of four hexadecimal digits; negative if a character is not a digit."""
    cdef int number = 0, i, digit
    for i in range(4):
        digit = hex_digit(at[i])
        if digit < 0:
            return -1
        number = number << 4 | digit
    return number


cdef inline unsigned char *skip_string(unsigned char *at, unsigned char *end, bint *is_escaped) noexcept nogil:
    """Return the end of the string that begins at a quote."""
    is_escaped[0] = False
    at += 1
    while True:
        at = find_special(at, end)
        if at >= end or at[0] < 0x20:
            return NULL
        if at[0] == c'"':
            return at + 1
        is_escaped[0] = True
        if end - at < 2:
            return NULL
        if at[1] == c'u':
            if end - at < 6 or hex_number(at + 2) < 0:
                return NULL
            at += 6
        elif at[1] in (c'"', c'\\', c'/', c'b', c'f', c'n', c'r', c't'):
            at += 2
        else:
            return NULL


cdef inline unsigned char *skip_number(unsigned char *at, unsigned char *end) noexcept nogil:
    cdef unsigned char *begin
    if at < end and at[0] == c'-':
        at += 1
    if at < end and at[0] == c'0':
        at += 1
    else:
        begin = at
        at = skip_digits(at, end)
        if at == begin:
            return NULL
    if at < end and at[0] == c'.':
        begin = at + 1
        at = skip_digits(begin, end)
        if at == begin:
            return NULL
    if at < end and at[0] | 0x20 == c'e':
        at += 1
        if at < end and (at[0] == c'+' or at[0] == c'-'):
            at += 1
        begin = at
        at = skip_digits(begin, end)
        if at == begin:
            return NULL
    return at


cdef inline unsigned char *read_long(unsigned char *at, unsigned char *end, long long *value) noexcept nogil:
    """Read an integer; return NULL if it is not an integer of 64 bits."""
    cdef bint is_negative = at < end and at[0] == c'-'
    cdef unsigned char *begin
    cdef unsigned long long number = 0
    at += is_negative
    begin = at
    at = read_digits(at, end, &number)
    # 19 digits always fit in 64 bits without a sign.
    if at == begin or at - begin > 19 or (begin[0] == c'0' and at - begin > 1):
        return NULL
    if at < end and (at[0] == c'.' or at[0] | 0x20 == c'e'):
        return NULL
    if number > <unsigned long long>0x7FFFFFFFFFFFFFFF + is_negative:
        return NULL
    value[0] = <long long>(0 - number) if is_negative else <long long>number
    return at


cdef inline Py_ssize_t put_utf8(unsigned char *out, int code) noexcept nogil:
    """Write a character as UTF-8; return the number of bytes."""
    if code < 0x80:
        out[0] = code
        return 1
    if code < 0x800:
        out[0] = 0xC0 | code >> 6
        out[1] = 0x80 | code & 0x3F
        return 2
    if code < 0x10000:
        out[0] = 0xE0 | code >> 12
        out[1] = 0x80 | code >> 6 & 0x3F
        out[2] = 0x80 | code & 0x3F
        return 3
    out[0] = 0xF0 | code >> 18
    out[1] = 0x80 | code >> 12 & 0x3F
    out[2] = 0x80 | code >> 6 & 0x3F
    out[3] = 0x80 | code & 0x3F
    return 4


cdef inline Py_ssize_t unescape(const unsigned char *text, Py_ssize_t size, unsigned char *out) noexcept nogil:
    """Unescape a string; return its bytes, never more than before; negative for half a surrogate pair.

    The escapes must be valid.
    """
    cdef Py_ssize_t at = 0, used = 0
    cdef int code, low
    while at < size:
        if text[at] != c'\\':
            out[used] = text[at]
            used += 1
            at += 1
            continue
        at += 2
        code = text[at - 1]
        if code == c'u':
            code = hex_number(<unsigned char *>text + at)
            at += 4
            if 0xD800 <= code < 0xE000:
                if code >= 0xDC00 or size - at < 6 or text[at] != c'\\' or text[at + 1] != c'u':
                    return -1
                low = hex_number(<unsigned char *>text + at + 2)
                if not 0xDC00 <= low < 0xE000:
                    return -1
                code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00)
                at += 6
        elif code == c'b':
            code = 8
        elif code == c'f':
            code = 12
        elif code == c'n':
            code = 10
        elif code == c'r':
            code = 13
        elif code == c't':
            code = 9
        used += put_utf8(out + used, code)
    return used


cdef inline unsigned int hash_of(const unsigned char *text, Py_ssize_t size) noexcept nogil:
    cdef unsigned long long first = 0, last = 0
    cdef unsigned int half
    if size >= 8:
        memcpy(&first, text, 8)
        memcpy(&last, text + size - 8, 8)
    elif size >= 4:
        memcpy(&half, text, 4)
        first = half
        memcpy(&half, text + size - 4, 4)
        last = half
    elif size:
        first = text[0] | text[size >> 1] << 8 | text[size - 1] << 16
    return <unsigned int>(((first ^ last << 7 ^ size) * 0x9E3779B97F4A7C15ULL) >> 40)


cdef inline int two_digits(const unsigned char *text) noexcept nogil:
    return (text[0] - c'0') * 10 + text[1] - c'0'


cdef inline long long days_of(int year, int month, int day) noexcept nogil:
    """Return the days since 1970 of a Gregorian date; years begin in March here, so that leap days are at their end."""
    year -= month <= 2
    month += 9 if month <= 2 else -3
    return year * 365LL + year // 4 - year // 100 + year // 400 + (153 * month + 2) // 5 + day - 1 - 719468


cdef inline int days_in(int year, int month) noexcept nogil:
    if month == 2:
        return 28 + (year % 4 == 0 and (year % 100 != 0 or year % 400 == 0))
    return 30 + ((month + (month > 7)) & 1)
