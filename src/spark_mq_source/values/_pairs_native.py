"""Decoder of pairs of key and value, compiled: Cython's pure-Python mode. Returns the same as ``_pairs_python``."""

import cython

if not cython.compiled:
    raise ImportError("spark_mq_source.values._pairs_native is not compiled")

from cython.cimports.spark_mq_source.core._wire import read_u32
from cython.cimports.spark_mq_source.values._loops_native import RowDecoder
from cython.cimports.spark_mq_source.values._tree_native import Node, end_struct, put_bytes, put_null

from spark_mq_source.values._pairs_python import PAIR, TOO_SHORT


@cython.final
@cython.cclass
class PairDecoder(RowDecoder):
    """Decoder of pairs; the compiled form of `_pairs_python.PairDecoder`."""

    def __init__(self):
        RowDecoder.__init__(self, PAIR)

    def read_row(self, payload):
        part: cython.int
        at: cython.Py_ssize_t = 0
        size: cython.int
        node: cython.pointer(Node)
        for part in range(2):
            node = self.tree.nodes.children + part
            if payload.size - at < 4:
                return False
            size = cython.cast(cython.int, cython.cast(cython.uint, read_u32(payload.data + at)))
            at += 4
            if size < 0:
                put_null(node)
                continue
            if size > payload.size - at:
                return False
            put_bytes(node, payload.data + at, size)
            at += size
        end_struct(self.tree.nodes)
        return True

    def why(self, payload):
        return TOO_SHORT
