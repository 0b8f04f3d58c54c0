"""Errors as Spark's workers pass them on: as text, and between processes as pickles."""

import copy
import inspect
import pickle

import pytest

from spark_mq_source.core import errors

CLASSES = [one for _, one in inspect.getmembers(errors, inspect.isclass) if issubclass(one, errors.MQSourceError)]


def made(cls):
    if issubclass(cls, errors.BrokerError):
        return cls("the sentence", code=7, code_name="TopicNotFound", broker_message="no such topic")
    return cls("the sentence")


def attributes(error):
    return type(error), str(error), error.args, error.retryable, vars(error)


def test_every_class_has_the_name_by_which_it_is_imported():
    assert {f"{one.__module__}.{one.__qualname__}" for one in CLASSES} == {
        f"spark_mq_source.{one.__name__}" for one in CLASSES
    }


def test_the_list_is_complete():
    assert sorted(one.__name__ for one in CLASSES) == sorted(errors.__all__)
    assert len(CLASSES) == 26


@pytest.mark.parametrize("cls", CLASSES)
def test_every_class_survives_pickling_and_copying(cls):
    error = made(cls)
    error.__notes__ = ["a note"]
    error.position = "12:3"
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert attributes(pickle.loads(pickle.dumps(error, protocol))) == attributes(error)  # noqa: S301 - our own bytes
    assert attributes(copy.copy(error)) == attributes(error)


@pytest.mark.parametrize("cls", CLASSES)
def test_context_can_be_added_to_every_class_without_other_changes(cls):
    error = made(cls)
    error.__notes__ = ["a note"]
    outer = error.within("topic t").within("pulsar-native")
    assert type(outer) is cls
    assert str(outer) == "pulsar-native: topic t: the sentence"
    assert vars(outer) == vars(error)
    assert str(error) == "the sentence"
    assert attributes(pickle.loads(pickle.dumps(outer))) == attributes(outer)  # noqa: S301 - our own bytes


@pytest.mark.parametrize("cls", CLASSES)
def test_every_class_is_in_the_tree_and_has_a_docstring(cls):
    assert issubclass(cls, errors.MQSourceError)
    assert cls.__name__ in (errors.__doc__ or "")
    assert cls.__doc__


def test_a_broker_error_has_its_attributes():
    error = errors.TopicNotFoundError("gone", code=11, code_name="TopicNotFound", broker_message="words")
    assert (error.code, error.code_name, error.broker_message) == (11, "TopicNotFound", "words")
    assert (errors.BrokerError("x").code, errors.BrokerError("x").code_name) == (None, "")


def test_retryable_classes():
    assert {one.__name__ for one in CLASSES if one.retryable} == {
        "TransportError",
        "ConnectTimeoutError",
        "ConnectionLostError",
        "RequestTimeoutError",
        "ResourceBusyError",
        "ServiceNotReadyError",
    }


def test_an_option_error_is_a_value_error():
    assert issubclass(errors.OptionError, ValueError)
