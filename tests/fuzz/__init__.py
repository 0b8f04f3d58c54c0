"""Hostile bytes: every decoder and encoder, built with sanitizers, on inputs that mutate what brokers have sent.

``make fuzz MINUTES=10`` builds and runs them, see `tests.fuzz.__main__`. Inputs in ``corpus/`` reached code that the
recordings do not; the ordinary tests run them as well (test_corpus.py).
"""
