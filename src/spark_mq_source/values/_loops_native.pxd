"""What the compiled loops over values begin with: the rows, steps in memory, and the bytes that grow."""

from spark_mq_source.core._arrays cimport Cells
from spark_mq_source.core._checked cimport must
from spark_mq_source.core._wire cimport Slice
from spark_mq_source.values._tree_native cimport Tree


cdef class RowDecoder:
    cdef readonly object type
    cdef Tree tree
    cdef list path  # of what is wrong with a payload, from the inside to the outside
    cdef unsigned char *limit  # where the payloads end, all of them: up to there a loop may look, whatever it finds

    cdef bint read_row(self, Slice payload) except -1
    cdef str why(self, Slice payload)


cdef class RowEncoder:
    cdef list described  # the steps as Python has them, which own their bytes
    cdef unsigned char *out
    cdef Py_ssize_t used
    cdef Py_ssize_t room

    cdef int put_row(self, Py_ssize_t row) except -1
    cdef int grow(self, Py_ssize_t more) except -1
    cdef int refuse(self, Py_ssize_t step, str why) except -1


cdef inline unsigned char *end_of(RowEncoder encoder, Py_ssize_t more) noexcept:
    """Where the next bytes are written, `more` at most, for which there is room."""
    must(0 <= more <= encoder.room - encoder.used, "bytes are written for which no room was reserved")
    return encoder.out + encoder.used


cdef Py_ssize_t count_steps(described) except -1
cdef int bind_array(Cells *cells, array) except -1
cdef Slice *lay_out_texts(texts) except? NULL
