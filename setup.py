"""Adds the compiled hot module to what pyproject.toml says; everything else is declared there."""

from pathlib import Path

from setuptools import Extension, setup

HOT_MODULE = "spark_mq_source.pulsar._messages_native"
SOURCE = Path("src", *HOT_MODULE.split(".")).with_suffix(".py")


def extensions() -> list[Extension]:
    """The extension modules to build: none where Cython or the source is missing, which installs the Python twin."""
    if not SOURCE.exists():
        return []
    try:
        from Cython.Build import cythonize
    except ImportError:
        return []
    extension = Extension(HOT_MODULE, [SOURCE.as_posix()], extra_compile_args=["-O3"])
    modules: list[Extension] = cythonize(  # type: ignore[no-untyped-call] # Cython is partly annotated
        [extension],
        build_dir="build/cython",
        compiler_directives={"language_level": 3, "boundscheck": False, "wraparound": False, "cdivision": True},
    )
    for module in modules:
        # A machine without a C compiler gets the interpreter's twin, and implementation() says so. Said here because
        # cythonize makes new Extension objects and forgets this one's `optional` (seen in Cython 3.3).
        module.optional = True
    return modules


setup(ext_modules=extensions())
