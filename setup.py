"""Adds the compiled hot modules to what pyproject.toml says; everything else is declared there."""

import os
from pathlib import Path

from setuptools import Extension, setup

HOT_MODULES = (
    "spark_mq_source.core._columns_native",
    "spark_mq_source.core.values._tree_native",
    "spark_mq_source.core.values._loops_native",
    "spark_mq_source.core.values._avro_native",
    "spark_mq_source.core.values._avro_encode_native",
    "spark_mq_source.core.values._protobuf_native",
    "spark_mq_source.core.values._protobuf_encode_native",
    "spark_mq_source.core.values._json_native",
    "spark_mq_source.core.values._pairs_native",
    "spark_mq_source.pulsar.payload._messages_native",
    "spark_mq_source.pulsar.payload._encode_native",
    "spark_mq_source.tubemq.payload._messages_native",
    "spark_mq_source.tubemq.payload._encode_native",
    "spark_mq_source.nsq.payload._messages_native",
    "spark_mq_source.nsq.payload._encode_native",
)

# Where the linker happens to put a loop would else make it up to a tenth slower or faster (measured on x86-64).
ALIGNMENT = ["-falign-functions=64", "-falign-loops=32"]

# For `make fuzz`, by SPARK_MQ_SOURCE_SANITIZE=1: what they find ends the process.
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]


def extensions() -> list[Extension]:
    """The extension modules to build: none where Cython or the sources are missing, which installs the Python twins."""
    sources = {name: Path("src", *name.split(".")).with_suffix(".py") for name in HOT_MODULES}
    if not all(source.exists() for source in sources.values()):
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    # An optimisation in CFLAGS wins over this one, which would come after it.
    compile_args = [] if "-O" in os.environ.get("CFLAGS", "") else ["-O3", *ALIGNMENT]
    sanitizes = os.environ.get("SPARK_MQ_SOURCE_SANITIZE") == "1"
    if sanitizes:
        compile_args = [*SANITIZERS, "-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize-coverage=trace-pc"]
    wanted = [
        Extension(
            name,
            [source.as_posix()],
            include_dirs=[source.parent.as_posix()],
            depends=[header.as_posix() for header in source.parent.glob("*.h")],
            extra_compile_args=compile_args,
            extra_link_args=SANITIZERS if sanitizes else [],
        )
        for name, source in sources.items()
    ]
    modules: list[Extension] = cythonize(  # type: ignore[no-untyped-call] # Cython is partly annotated
        wanted,
        build_dir="build/cython",
        compiler_directives={"language_level": 3, "boundscheck": False, "wraparound": False, "cdivision": True},
    )
    for module in modules:
        # A machine without a C compiler gets the interpreter's twin, and implementation() says so. Said here because
        # cythonize makes new Extension objects and forgets this one's `optional` (seen in Cython 3.3).
        module.optional = not sanitizes
    return modules


setup(ext_modules=extensions())
