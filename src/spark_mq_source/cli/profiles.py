"""Profiles: named formats and options of brokers, in a TOML file without secrets."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import typer

from spark_mq_source.core.errors import OptionError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

# The names that Spark redacts, which all secret options have, pulsar-spark's authParams, or a password in a URL.
_SECRET_NAME: Final = re.compile(r"secret|password|token$|access\.?key|authparams", re.IGNORECASE)
_SECRET_VALUE: Final = re.compile(r"://[^/@\s]*:[^/@\s]+@")
_REFERENCES: Final = ("env", "file")


@dataclass(frozen=True, slots=True)
class Profile:
    """One section of the file.

    Attributes:
        options: texts by name, or references to an environment variable (`env`) or a file (`file`).
    """

    name: str
    format_name: str
    options: Mapping[str, str | Mapping[str, str]]

    def resolved(self) -> dict[str, str]:
        """Return the options with resolved references; names in lower case.

        Raises:
            OptionError: a variable is not set, or a file cannot be read.
        """
        return {name.lower(): self._value(name, given) for name, given in self.options.items()}

    def _value(self, name: str, given: str | Mapping[str, str]) -> str:
        if isinstance(given, str):
            return given
        ((kind, where),) = given.items()
        if kind == "env":
            if where not in os.environ:
                raise OptionError(f"profile {self.name}: {name}: the environment variable {where} is not set")
            return os.environ[where]
        try:
            return Path(where).expanduser().read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise OptionError(f"profile {self.name}: {name}: cannot read the file {where}: {error}") from error


def profiles_path() -> Path:
    """Return the path of the file: in the platform's folder for configuration, such as ~/.config/spark-mq."""
    return Path(typer.get_app_dir("spark-mq")) / "profiles.toml"


def load_profiles() -> dict[str, Profile]:
    """Load all profiles; none if there is no file.

    Raises:
        OptionError: the file does not have the documented form, or contains a secret.
    """
    path = profiles_path()
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise OptionError(f"{path}: {error}") from error
    return {name: _parsed(f"{path}: profile {name}", name, section) for name, section in document.items()}


def load_profile(name: str) -> Profile:
    """Load one profile.

    Raises:
        OptionError: the profile does not exist, or the file is invalid.
    """
    profiles = load_profiles()
    if name not in profiles:
        known = f"expected one of {', '.join(profiles)}" if profiles else "there are no profiles"
        raise OptionError(f"unknown profile {name}; {known} in {profiles_path()}")
    return profiles[name]


def _parsed(where: str, name: str, section: object) -> Profile:
    if not isinstance(section, dict) or not isinstance(section.get("format"), str):
        raise OptionError(f"{where}: expected a section [{name}] with format = NAME, and options")
    options = {option: _option(where, option, value) for option, value in section.items() if option != "format"}
    return Profile(name, section["format"], options)


def _option(where: str, name: str, value: object) -> str | Mapping[str, str]:
    # Errors do not show the value, which may be a secret.
    if isinstance(value, dict):
        if len(value) == 1 and all(kind in _REFERENCES and isinstance(at, str) for kind, at in value.items()):
            return value
        raise OptionError(f'{where}: {name}: expected a text, {{ env = "VARIABLE" }} or {{ file = "PATH" }}')
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, str | int):
        raise OptionError(f"{where}: {name}: expected a text, a number, true or false")
    text = str(value)
    if _SECRET_NAME.search(name) or _SECRET_VALUE.search(text):
        raise OptionError(
            f'{where}: {name}: a secret must not be in this file; refer to it: {name} = {{ env = "VARIABLE" }} or '
            f'{{ file = "PATH" }}'
        )
    return text
