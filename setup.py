"""Adds the compiled hot modules to what pyproject.toml says; everything else is declared there."""

import os
from pathlib import Path

from setuptools import Extension, setup

HOT_MODULES = (
    "spark_mq_source.pulsar._messages_native",
    "spark_mq_source.pulsar._encode_native",
    "spark_mq_source.tubemq._messages_native",
    "spark_mq_source.tubemq._encode_native",
    "spark_mq_source.nsq._messages_native",
    "spark_mq_source.nsq._encode_native",
)


def extensions() -> list[Extension]:
    """The extension modules to build: none where Cython or the sources are missing, which installs the Python twins."""
    sources = {name: Path("src", *name.split(".")).with_suffix(".py") for name in HOT_MODULES}
    if not all(source.exists() for source in sources.values()):
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    # Whoever builds with an optimisation of their own in CFLAGS means it, and what is said here would win.
    optimisation = [] if "-O" in os.environ.get("CFLAGS", "") else ["-O3"]
    wanted = [
        Extension(
            name,
            [source.as_posix()],
            include_dirs=[source.parent.as_posix()],
            depends=[header.as_posix() for header in source.parent.glob("*.h")],
            extra_compile_args=optimisation,
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
        module.optional = True
    return modules


setup(ext_modules=extensions())
