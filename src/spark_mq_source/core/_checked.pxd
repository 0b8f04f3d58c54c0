"""Assertions of the checked build: see "The checked build" in CONTRIBUTING.md.

Without `SPARK_MQ_SOURCE_CHECKED` an assertion does nothing, and its condition is not evaluated.
"""


cdef extern from *:
    """
    #ifndef SPARK_MQ_SOURCE_CHECKED_H
    #define SPARK_MQ_SOURCE_CHECKED_H
    #ifdef SPARK_MQ_SOURCE_CHECKED
    #include <stdio.h>
    #include <stdlib.h>
    #include <unistd.h>
    #define SPARK_MQ_IS_CHECKED 1

    static inline int spark_mq_check(int condition, const char *what) {
        if (!condition) {
            PyErr_Format(PyExc_AssertionError, "checked build: %s", what);
            return -1;
        }
        return 0;
    }

    /* For code that cannot raise. A test runner that captures standard error names another file: "pid:descriptor". */
    static inline void spark_mq_must(int condition, const char *what) {
        int process, file = 2;
        const char *named = getenv("SPARK_MQ_SOURCE_CHECKED_REPORT");
        if (condition) return;
        if (named == NULL || sscanf(named, "%d:%d", &process, &file) != 2 || process != getpid()) file = 2;
        dprintf(file, "spark-mq-source, checked build: %s\\n", what);
        abort();
    }

    /* A test sets the attribute of `sys` to the address of a counter: the allocation that makes it 0 fails. */
    static inline int spark_mq_fails(void) {
        PyObject *address = PySys_GetObject("spark_mq_source_failing_allocation");
        return address != NULL && --*(long long *)PyLong_AsVoidPtr(address) == 0;
    }
    #else
    #define SPARK_MQ_IS_CHECKED 0
    #define spark_mq_check(condition, what) 0
    #define spark_mq_must(condition, what) ((void)0)
    #define spark_mq_fails() 0
    #endif
    #endif
    """
    const bint IS_CHECKED "SPARK_MQ_IS_CHECKED"
    int check "spark_mq_check"(bint condition, const char *what) except -1  # raises AssertionError
    void must "spark_mq_must"(bint condition, const char *what) noexcept nogil  # ends the process
    bint allocation_fails "spark_mq_fails"() noexcept
