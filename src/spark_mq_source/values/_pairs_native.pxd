"""The compiled loop over pairs of key and value."""

from spark_mq_source.values._loops_native cimport RowDecoder


cdef class PairDecoder(RowDecoder):
    pass
