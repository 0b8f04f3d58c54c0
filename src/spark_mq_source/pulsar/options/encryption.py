"""Options for the end-to-end encryption of payloads."""

# ruff: noqa: RUF009 - option() is dataclasses.field() under another name, no shared default
from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from spark_mq_source.core.options import WRITE, Options, Scope, Section, StrEnum, option, parse_list
from spark_mq_source.core.shared_options import EVERYWHERE
from spark_mq_source.core.user_functions import parse_function

EVERY_NAME: Final = ""
"""The name, in `KeyFiles`, of a file for keys of every other name."""

KeyFiles = Sequence[tuple[str, str]]
"""Paths of keys by name."""


class CryptoFailureAction(StrEnum):
    """Action for a message that cannot be decrypted or encrypted; the names are the Java client's."""

    FAIL = "FAIL"
    DISCARD = "DISCARD"
    CONSUME = "CONSUME"
    SEND = "SEND"


_OF_WRITES: Final = (CryptoFailureAction.FAIL, CryptoFailureAction.SEND)
_OF_READS: Final = (CryptoFailureAction.FAIL, CryptoFailureAction.DISCARD, CryptoFailureAction.CONSUME)


def _parse_key_files(text: str) -> KeyFiles:
    """Return the names and paths of keys.

    Raises:
        ValueError: a path is missing, or two are for the same name.

    Example:
        >>> _parse_key_files("/keys/public.pem"), _parse_key_files("alice=/keys/alice.pem,bob=/keys/bob.pem")
        ((('', '/keys/public.pem'),), (('alice', '/keys/alice.pem'), ('bob', '/keys/bob.pem')))
    """
    files: list[tuple[str, str]] = []
    for part in parse_list(text):
        name, _, path = part.rpartition("=")
        path = path.strip().removeprefix("file://")
        if not path or name.strip() in dict(files):
            raise ValueError("expected a path, or name=path,name=path with each name once")
        files.append((name.strip(), path))
    return tuple(files)


@dataclass(frozen=True, kw_only=True, repr=False)
class EncryptionOptions(Options):
    """Options for the end-to-end encryption of payloads."""

    encryption_keys: tuple[str, ...] | None = option(
        "Names of the public keys with which payloads are encrypted, separated by commas; the owner of any of them can "
        "decrypt.",
        default=None,
        default_text="the names in `cryptoPublicKeys`",
        scope=WRITE,
        parse=parse_list,
        section=Section.ENCRYPT,
    )
    crypto_public_keys: KeyFiles | None = option(
        "PEM files of the public keys (RSA or EC) or of certificates with them: `name=/path/public.pem,name=...`, or "
        "one path for all names. Every machine that writes needs them.",
        default=None,
        scope=WRITE,
        parse=_parse_key_files,
    )
    crypto_private_keys: KeyFiles | None = option(
        "PEM files of the private keys (RSA or EC): `name=/path/private.pem,name=...`, or one path for keys of every "
        "name. Every machine that reads needs them.",
        default=None,
        parse=_parse_key_files,
    )
    crypto_key_reader: str | None = option(
        "Python function that returns keys in place of files, as `module:function`, importable on every machine that "
        'reads or writes. Its arguments are `"public"` or `"private"`, the name of the key, and the metadata of the '
        "message's key (a dict). It returns the key in PEM; for a public key also a pair of it and metadata.",
        default=None,
        scope=EVERYWHERE,
        parse=parse_function,
    )
    crypto_failure_action: CryptoFailureAction = option(
        "Action if a payload cannot be decrypted or, writing, a public key cannot be read. `FAIL`: the task fails. "
        "`DISCARD`: the entry gives no row; a queue acknowledges it. `CONSUME`: the entry gives one row with the "
        "ciphertext as `value`; the column `encryption_context` then has the keys and parameters for decryption. "
        "`SEND`: a task writes without encryption.",
        default=CryptoFailureAction.FAIL,
        scope=EVERYWHERE,
    )

    @property
    def public_key_names(self) -> tuple[str, ...]:
        """Names of the keys with which payloads are encrypted; empty if they are not."""
        if self.encryption_keys is not None:
            return self.encryption_keys
        return tuple(name for name, _ in self.crypto_public_keys or () if name != EVERY_NAME)

    @property
    def on_encrypted(self) -> str:
        """`fail`, `skip` or `raw`: the argument of that name of `EntryDecoder`."""
        return {"DISCARD": "skip", "CONSUME": "raw"}.get(self.crypto_failure_action.value, "fail")

    def _problems(self, scope: Scope, given: frozenset[str]) -> Iterator[str]:
        allowed, doing = (_OF_WRITES, "writing") if scope & WRITE else (_OF_READS, "reading")
        if self.crypto_failure_action not in allowed:
            names = " or ".join(allowed)
            yield f"cryptoFailureAction={self.crypto_failure_action.value}: {doing} it must be {names}"
        files = self.crypto_public_keys if scope & WRITE else self.crypto_private_keys
        field = "crypto_public_keys" if scope & WRITE else "crypto_private_keys"
        if files is not None and self.crypto_key_reader is not None:
            yield f"{self.name_of(field)} and cryptoKeyReader contradict each other: set only one"
        if not scope & WRITE:
            return
        if not self.public_key_names and (files is not None or self.crypto_key_reader is not None):
            yield "cryptoPublicKeys and cryptoKeyReader need encryptionKeys: the names of the keys, which messages have"
        if self.crypto_key_reader is None:
            known = dict(files or ())
            missing = [name for name in self.public_key_names if name not in known and EVERY_NAME not in known]
            if missing:
                yield f"encryptionKeys: no file for {', '.join(missing)}: set cryptoPublicKeys, or cryptoKeyReader"
