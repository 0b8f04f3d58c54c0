"""Profiles: valid contents of their file, without secrets."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from spark_mq_source.cli.formats import FORMATS
from spark_mq_source.cli.profiles import load_profile, load_profiles, profiles_path
from spark_mq_source.core.errors import OptionError
from spark_mq_source.formats import load_format


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of the file, found by the environment on every platform."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    profiles_path().parent.mkdir(parents=True)
    return tmp_path


def write(text: str) -> None:
    profiles_path().write_text(text, encoding="utf-8")


def test_an_option_is_a_text_a_number_or_a_truth_value():
    write('[a]\nformat = "nsq"\nclientId = "x"\nmaxInFlight = 5\ntls = true\n')
    assert load_profile("a").format_name == "nsq"
    assert load_profile("a").resolved() == {"clientid": "x", "maxinflight": "5", "tls": "true"}


def test_a_secret_comes_from_the_environment_or_a_file(folder: Path, monkeypatch: pytest.MonkeyPatch):
    (folder / "token").write_text("from-file\n")
    monkeypatch.setenv("MQ_TOKEN", "from-environment")
    write(
        '[a]\nformat = "nsq"\nauthSecret = { env = "MQ_TOKEN" }\n[b]\nformat = "nsq"\nauthSecret = { file = "~/token" }'
    )
    assert load_profile("a").resolved() == {"authsecret": "from-environment"}
    assert load_profile("b").resolved() == {"authsecret": "from-file"}
    monkeypatch.delenv("MQ_TOKEN")
    (folder / "token").unlink()
    with pytest.raises(OptionError, match=r"^profile a: authSecret: the environment variable MQ_TOKEN is not set$"):
        load_profile("a").resolved()
    with pytest.raises(OptionError, match=r"^profile b: authSecret: cannot read the file ~/token: "):
        load_profile("b").resolved()


@pytest.mark.parametrize("name", FORMATS)
def test_exactly_the_secret_options_are_refused_by_name(name: str):
    options_type = type(load_format(name)).options_type  # type: ignore[attr-defined]
    secrets = {options_type.name_of(field.name) for field in dataclasses.fields(options_type) if not field.repr}
    refused = set()
    for one in options_type.described():
        write(f'[a]\nformat = "{name}"\n{one.name} = "x"\n')
        try:
            load_profiles()
        except OptionError:
            refused.add(one.name)
    assert refused == secrets


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('authToken = "t0psecret"', "authToken: a secret must not be in this file; refer to it: authToken = { env = "),
        ('authBasicPassword = "t0psecret"', "authBasicPassword: a secret must not be"),
        ("authPassword = 1234", "authPassword: a secret must not be"),
        ('"pulsar.client.authParams" = "token:t0psecret"', "pulsar.client.authParams: a secret must not be"),
        ('schemaRegistryUrl = "https://me:t0psecret@host"', "schemaRegistryUrl: a secret must not be"),
        (
            'authToken = { value = "t0psecret" }',
            'authToken: expected a text, { env = "VARIABLE" } or { file = "PATH" }',
        ),
        ('authToken = { env = "A", file = "B" }', "authToken: expected a text"),
        ("authToken = { env = 1 }", "authToken: expected a text"),
        ('topics = ["a"]', "topics: expected a text, a number, true or false"),
    ],
)
def test_invalid_contents_of_the_file_are_refused_and_not_shown(line: str, why: str):
    write(f'[a]\nformat = "nsq"\n{line}\n')
    with pytest.raises(OptionError) as raised:
        load_profiles()
    assert str(raised.value).startswith(f"{profiles_path()}: profile a: {why}")
    assert "t0psecret" not in str(raised.value)


def test_the_profiles_of_the_documentation_are_valid(monkeypatch: pytest.MonkeyPatch):
    page = (Path(__file__).parents[3] / "docs" / "reference" / "command-line.md").read_text(encoding="utf-8")
    write(page.partition("```toml\n")[2].partition("```")[0])
    monkeypatch.setenv("PULSAR_TOKEN", "t0psecret")
    prod = load_profile("prod")
    assert prod.options["authToken"] == {"env": "PULSAR_TOKEN"}
    assert load_format(prod.format_name).parse_list_options(prod.resolved()).auth_token == "t0psecret"
    assert load_profile("orders").format_name == "nsq"


def test_a_path_to_a_token_is_no_secret():
    write('[a]\nformat = "pulsar-native"\nauthTokenFile = "/run/token"\nserviceUrl = "pulsar://host:6650"\n')
    assert load_profile("a").resolved()["authtokenfile"] == "/run/token"


@pytest.mark.parametrize("text", ['[a]\ntopic = "t"\n', 'a = "nsq"\n', "[a]\nformat = 1\n"])
def test_a_profile_without_a_format_is_refused(text: str):
    write(text)
    with pytest.raises(OptionError, match=r"profile a: expected a section \[a\] with format = NAME, and options"):
        load_profiles()


def test_a_file_that_is_not_toml_is_refused_with_its_name():
    write("[a\n")
    with pytest.raises(OptionError, match=rf"^{profiles_path()}: .*line 1"):
        load_profiles()


def test_an_unknown_profile_is_an_error_that_lists_the_profiles():
    with pytest.raises(OptionError, match=rf"^unknown profile b; there are no profiles in {profiles_path()}$"):
        load_profile("b")
    write('[a]\nformat = "nsq"\n[c]\nformat = "tubemq"\n')
    with pytest.raises(OptionError, match=r"^unknown profile b; expected one of a, c in "):
        load_profile("b")
