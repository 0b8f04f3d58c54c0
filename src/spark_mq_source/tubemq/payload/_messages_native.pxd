cdef extern from "crc32.h" nogil:
    void crc32_begin()
    unsigned int crc32_of(const unsigned char *data, Py_ssize_t size)
