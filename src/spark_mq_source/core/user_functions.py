"""Functions of the user that options name as ``module:function``.

An option takes the name by `parse_function`; a task loads the function by `load_function`, or calls it by
`call_function` if no error may show what the function works with.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from importlib import import_module
from typing import Any, Final

from spark_mq_source.core.errors import AuthenticationError, OptionError

AUTH_PLUGIN: Final = "authPlugin"


def parse_function(text: str) -> str:
    """Check the name of a function, as ``module:function``, and return it.

    Raises:
        ValueError: not a function name.

    Example:
        >>> parse_function("company.secrets:fetch_token")
        'company.secrets:fetch_token'
    """
    if not all(part.isidentifier() for name in text.split(":", 1) for part in name.split(".")) or ":" not in text:
        raise ValueError("expected module:function")
    return text


def load_function(option_name: str, text: str) -> Callable[..., Any]:
    """Return the function that an option names.

    Args:
        option_name: the option, for errors.
        text: the name, as ``module:function``.

    Raises:
        OptionError: it cannot be imported on this machine, or is not a function.

    Example:
        >>> load_function("keyReader", "json:loads")("[1]")
        [1]
        >>> load_function("keyReader", "no_such_module:read")
        Traceback (most recent call last):
        ...
        spark_mq_source.OptionError: keyReader='no_such_module:read' cannot be imported on this machine (No module \
named 'no_such_module'); install the module on the driver and every executor, or send it with --py-files
    """
    module, _, name = text.partition(":")
    try:
        function: object = reduce(getattr, name.split("."), import_module(module))
    except Exception as error:  # the module's own code runs, and may raise anything
        is_absent = isinstance(error, ImportError | AttributeError)
        why = str(error) if is_absent else f"the module fails with {type(error).__name__}"
        raise OptionError(
            f"{option_name}={text!r} cannot be imported on this machine ({why}); install the module on the driver and "
            f"every executor, or send it with --py-files"
        ) from error
    if not callable(function):
        raise OptionError(f"{option_name}={text!r} is not a function, but {type(function).__name__}")
    return function


def call_function(option_name: str, text: str, *arguments: object) -> object:
    """Return the result of the function that an option names, which provides credentials.

    Raises:
        OptionError: see `load_function`.
        AuthenticationError: the function failed; the error shows only the class of the function's error.
    """
    function = load_function(option_name, text)
    try:
        return function(*arguments)
    except Exception as error:  # noqa: BLE001 - neither its words nor its traceback may show a secret
        raise AuthenticationError(f"{option_name}={text!r} failed with {type(error).__name__}") from None


def ask_plugin(text: str, host: str, challenge: bytes | None, state: dict[str, object]) -> tuple[str, bytes]:
    """Return the answer of the function that `authPlugin` names: the method of authentication, and its data.

    Args:
        text: the function's name.
        host: the host to authenticate at.
        challenge: what the data must answer; None for the first data of a connection.
        state: a dictionary that the function may use from one step to the next; empty at the first.

    Raises:
        OptionError: see `load_function`.
        AuthenticationError: the function failed, or returned something else.

    Example:
        >>> ask_plugin("builtins:divmod", "host", None, {})
        Traceback (most recent call last):
        ...
        spark_mq_source.AuthenticationError: authPlugin='builtins:divmod' failed with TypeError
    """
    answer = call_function(AUTH_PLUGIN, text, host, challenge, state)
    match answer:
        case (str(method), str() | bytes() as data) if method:
            return method, data.encode() if isinstance(data, str) else data
    raise AuthenticationError(f"{AUTH_PLUGIN}={text!r} must return a method and bytes, not {type(answer).__name__}")
