"""The format and options of a command, from its arguments and from a profile."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from spark_mq_source.cli.formats import FORMATS
from spark_mq_source.cli.profiles import Profile, load_profile
from spark_mq_source.core.errors import OptionError
from spark_mq_source.formats import load_format

if TYPE_CHECKING:
    from spark_mq_source.base_format import AnyFormat
    from spark_mq_source.core.ports import Inspector

_TOPICS: Final = ("topic", "topics", "topicspattern")


@dataclass(frozen=True, slots=True)
class Source:
    """The format and options of a command.

    Attributes:
        options: the options as Spark passes them, with names in lower case.
    """

    name: str
    options: Mapping[str, str]

    @classmethod
    def of(
        cls, profile_name: str | None, format_name: str | None, topic: str | None, option: Iterable[str] | None
    ) -> Source:
        """Return the source that the arguments name, completed by the profile.

        Args:
            profile_name: the name of a profile; None without one.
            format_name: None for the profile's format.
            topic: replaces the profile's topics.
            option: `NAME=VALUE`; replaces the profile's option of this name.

        Raises:
            OptionError: no format is given, or another one than the profile's, or an option is not `NAME=VALUE`.

        Example:
            >>> Source.of(None, "nsq", "flights", ["nsqdTcpAddresses=localhost:4150"]).options
            {'nsqdtcpaddresses': 'localhost:4150', 'topic': 'flights'}
        """
        profile = load_profile(profile_name) if profile_name else Profile("", format_name or "", {})
        if not profile.format_name:
            raise OptionError(f"FORMAT is missing: give one of {', '.join(FORMATS)}, or --profile NAME")
        if format_name not in (None, profile.format_name):
            raise OptionError(
                f"profile {profile_name} has the format {profile.format_name}, not {format_name}: leave FORMAT out, or "
                "use another profile"
            )
        given = _parsed(option or ()) | ({} if topic is None else {"topic": topic})
        options = profile.resolved()
        if given.keys() & set(_TOPICS):
            options = _without_topics(options)
        return cls(profile.format_name, options | given)

    @property
    def format(self) -> AnyFormat:
        """The format itself.

        Raises:
            OptionError: the name is unknown.
        """
        return load_format(self.name)

    def open_inspector(self) -> Inspector:
        """Open an inspector with the options of a read.

        Raises:
            OptionError: the format or an option is wrong.
        """
        return self.format.open_inspector(self.format.parse_look_options(self.options))

    def open_lister(self, namespace: str | None = None, *, every: bool = False) -> Inspector:
        """Open an inspector whose `topics` are those of the options, or all topics if the options name none.

        Args:
            namespace: a namespace of Pulsar whose topics to list, regardless of the options.
            every: whether to list all topics, regardless of the options.

        Raises:
            OptionError: the format or an option is wrong, or the format has no namespaces.
        """
        format_, options = self.format, dict(self.options)
        if every or namespace is not None:
            options = _without_topics(options)
        if namespace is not None:
            if not format_.has_namespaces:
                raise OptionError(f"format {self.name} has no namespaces: remove --namespace")
            options["topicspattern"] = f"{namespace}/.*"
        return format_.open_inspector(format_.parse_list_options(options))


def _without_topics(options: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in options.items() if name not in _TOPICS}


def _parsed(option: Iterable[str]) -> dict[str, str]:
    """Return the options in the form that Spark passes."""
    parsed = {}
    for given in option:
        name, equals, value = given.partition("=")
        if not equals:
            # The text is not shown, because it may be a secret without a name.
            raise OptionError("an --option is not NAME=VALUE")
        # Spark's options are case-insensitive.
        parsed[name.strip().lower()] = value
    return parsed
