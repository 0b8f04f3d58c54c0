"""The keys of encrypted payloads: files, or a user's function; and the ciphers that use them.

Keys are read on the machine that runs a task. No error contains a key.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from spark_mq_source.core.errors import OptionError, UnreadableKeyError, UnsupportedFeatureError
from spark_mq_source.core.user_functions import load_function
from spark_mq_source.pulsar.options.encryption import EVERY_NAME, CryptoFailureAction, KeyFiles

if TYPE_CHECKING:
    from types import ModuleType

    from spark_mq_source.pulsar.options.encryption import EncryptionOptions
    from spark_mq_source.pulsar.payload.cipher import KeyReader, PayloadDecryptor, PayloadEncryptor

logger = logging.getLogger(__name__)


def encryptor_of(options: EncryptionOptions, now_ms: int) -> PayloadEncryptor | None:
    """Return what encrypts the payloads of a write; None if they are not encrypted.

    Args:
        options: of the write.
        now_ms: milliseconds since 1970.

    Raises:
        OptionError: a public key cannot be read, and `cryptoFailureAction` is `FAIL`.
        UnsupportedFeatureError: the package cryptography is not installed.
    """
    names = options.public_key_names
    if not names:
        return None
    try:
        encryptor: PayloadEncryptor = _cipher().PayloadEncryptor(names, _key_reader(options), now_ms)
    except OptionError as error:
        if options.crypto_failure_action is CryptoFailureAction.FAIL:
            raise
        logger.warning("pulsar-native: messages are sent without encryption (cryptoFailureAction=SEND): %s", error)
        return None
    return encryptor


def decryptor_of(options: EncryptionOptions) -> PayloadDecryptor | None:
    """Return what decrypts the payloads of a read; None without keys.

    Raises:
        UnsupportedFeatureError: the package cryptography is not installed.
    """
    if options.crypto_private_keys is None and options.crypto_key_reader is None:
        return None
    decryptor: PayloadDecryptor = _cipher().PayloadDecryptor(_key_reader(options))
    return decryptor


def _cipher() -> ModuleType:
    try:
        from spark_mq_source.pulsar.payload import cipher  # noqa: PLC0415 - needs an extra
    except ImportError as error:
        raise UnsupportedFeatureError(
            "end-to-end encryption needs the Python package cryptography: pip install 'spark-mq-source[encryption]' on "
            "every executor"
        ) from error
    return cipher


def _key_reader(options: EncryptionOptions) -> KeyReader:
    if options.crypto_key_reader is not None:
        return partial(supplied_key, options.crypto_key_reader)
    files = {"public": options.crypto_public_keys or (), "private": options.crypto_private_keys or ()}
    return partial(key_in_file, files)


def key_in_file(
    files: Mapping[str, KeyFiles], kind: str, name: str, metadata: Mapping[str, str]
) -> tuple[bytes, Mapping[str, str]]:
    """Return a key from its file, which has no metadata; see `cipher.KeyReader`.

    Raises:
        OptionError: the option has no file for the key.
        UnreadableKeyError: the file cannot be read.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile("w") as file:
        ...     _ = file.write("a key in PEM")
        ...     file.flush()
        ...     key_in_file({"public": (("alice", file.name),)}, "public", "alice", {})
        (b'a key in PEM', {})
    """
    del metadata
    option, paths = f"crypto{kind.capitalize()}Keys", dict(files[kind])
    path = paths.get(name, paths.get(EVERY_NAME))
    if path is None:
        raise OptionError(f"{option} has no file for the key {name!r}")
    try:
        return Path(path).read_bytes(), {}
    except OSError as error:
        raise UnreadableKeyError(
            f"{option}: {path} cannot be read ({error.strerror}); every executor needs it at this path"
        ) from error


def supplied_key(function: str, kind: str, name: str, metadata: Mapping[str, str]) -> tuple[bytes, Mapping[str, str]]:
    """Return a key from the user's function of the option `cryptoKeyReader`; see `cipher.KeyReader`.

    Raises:
        OptionError: the function returned no key, or failed with LookupError or FileNotFoundError.
        UnreadableKeyError: the function failed with another error, or does not exist on this machine.
    """
    try:
        read = load_function("cryptoKeyReader", function)
    except OptionError as error:
        raise UnreadableKeyError(str(error)) from error
    try:
        found = read(kind, name, dict(metadata))
    except Exception as error:  # noqa: BLE001 - whatever it is: neither its words nor its traceback may show a key
        has_none = isinstance(error, (LookupError, FileNotFoundError))
        raise (OptionError if has_none else UnreadableKeyError)(
            f"cryptoKeyReader={function!r} failed with {type(error).__name__} for the {kind} key {name!r}"
        ) from None
    pem, more = found if isinstance(found, tuple) and len(found) == 2 else (found, {})
    data = pem.encode() if isinstance(pem, str) else pem
    if not isinstance(data, bytes) or not data or not isinstance(more, Mapping):
        raise OptionError(f"cryptoKeyReader={function!r} returned no {kind} key {name!r} (but {type(found).__name__})")
    return data, more
