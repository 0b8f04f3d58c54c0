"""Adds the compiled hot modules to what pyproject.toml says; everything else is declared there."""

import hashlib
import os
import time
from pathlib import Path

from setuptools import Extension, setup

HOT_MODULES = (
    "spark_mq_source.core._columns_native",
    "spark_mq_source.values._tree_native",
    "spark_mq_source.values._loops_native",
    "spark_mq_source.values.avro._decode_native",
    "spark_mq_source.values.avro._encode_native",
    "spark_mq_source.values.protobuf._decode_native",
    "spark_mq_source.values.protobuf._encode_native",
    "spark_mq_source.values.json._decode_native",
    "spark_mq_source.values._pairs_native",
    "spark_mq_source.pulsar.payload._messages_native",
    "spark_mq_source.pulsar.payload._encode_native",
    "spark_mq_source.tubemq.payload._messages_native",
    "spark_mq_source.nsq.payload._messages_native",
    "spark_mq_source.nsq.payload._encode_native",
)

# Where the linker happens to put a loop would else make it up to a tenth slower or faster (measured on x86-64).
ALIGNMENT = ["-falign-functions=64", "-falign-loops=32"]

# For `make fuzz`, by SPARK_MQ_SOURCE_SANITIZE=1: what they find ends the process.
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]

# For `make test` and `make fuzz`, by SPARK_MQ_SOURCE_CHECKED=1: each write into a column asserts kind and bounds.
CHECKED = "-DSPARK_MQ_SOURCE_CHECKED"
CHECKS = ("spark_mq_source.core._checks", Path("tests", "checks.pyx"))
"""A module of the checked build alone: what breaks its assertions, for a test."""

STAMP = "spark-mq-source stamp: "


def extensions() -> list[Extension]:
    """Return the extension modules to build: none without Cython or the sources, which installs the Python twins."""
    sources = {name: Path("src", *name.split(".")).with_suffix(".py") for name in HOT_MODULES}
    if not all(source.exists() for source in sources.values()):
        return []
    # An optimisation in CFLAGS wins over this one, which would come after it.
    compile_args = [] if "-O" in os.environ.get("CFLAGS", "") else ["-O3", *ALIGNMENT]
    sanitizes = os.environ.get("SPARK_MQ_SOURCE_SANITIZE") == "1"
    checks = os.environ.get("SPARK_MQ_SOURCE_CHECKED") == "1"
    if sanitizes or checks:
        compile_args = ["-O1", "-g"]
    if sanitizes:
        compile_args += [*SANITIZERS, "-fno-omit-frame-pointer", "-fsanitize-coverage=trace-pc"]
    if checks:
        compile_args += [CHECKED]
        sources[CHECKS[0]] = CHECKS[1]
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
    try:
        modules = compile_to_c(wanted)
    except ImportError:
        return []
    for module in modules:
        # A machine without a C compiler gets the interpreter's twin, and implementation() says so. Said here because
        # cythonize makes new Extension objects and forgets this one's `optional` (seen in Cython 3.3).
        module.optional = not sanitizes and not checks
    return modules


def compile_to_c(wanted: list[Extension]) -> list[Extension]:
    """Compile to C what is older than its sources, and give each module a stamp: what it is built from.

    Raises:
        ImportError: Cython is missing.
    """
    from Cython.Build import cythonize
    from Cython.Build.Dependencies import create_dependency_tree

    options: dict[str, object] = {
        "build_dir": "build/cython",
        "include_path": ["src"],
        "compiler_directives": {"language_level": 3, "boundscheck": False, "wraparound": False, "cdivision": True},
    }
    began = time.time()
    modules: list[Extension] = cythonize(wanted, **options)  # type: ignore[no-untyped-call] # Cython is partly annotated
    tree = create_dependency_tree()  # type: ignore[no-untyped-call] # that of `cythonize`
    for extension, module in zip(wanted, modules, strict=True):
        files = {Path(file) for file in (*tree.all_dependencies(extension.sources[0]), *extension.depends)}
        sources = sorted(file for file in files if not file.is_absolute())
        digest = hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
        generated = Path(module.sources[0])
        if is_new(generated.with_suffix(".stamp"), digest) and generated.stat().st_mtime < began:
            # The sources have changed, and their times have not: those of an archive, or of a copy.
            cythonize(extension, force=True, **options)  # type: ignore[no-untyped-call]
        paths = " ".join(source.as_posix().removeprefix("src/") for source in sources)
        flags = " ".join(module.extra_compile_args)
        # One for each set of flags, in the order of which the builds do not matter.
        flavour = hashlib.sha256(flags.encode()).hexdigest()[:8]
        stamp = Path("build", "stamps", flavour, f"{module.name}.c")
        is_new(stamp, f'const char spark_mq_source_stamp[] = "{STAMP}{digest} {paths}";\n/* {flags} */\n')
        module.sources.append(stamp.as_posix())
    return modules


def is_new(path: Path, text: str) -> bool:
    """Write a file, unless it has this text already: then it keeps its time, and nothing is built again."""
    if path.exists() and path.read_text() == text:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return True


if __name__ == "__main__":
    setup(ext_modules=extensions(), options={"build_ext": {"parallel": os.cpu_count()}})
