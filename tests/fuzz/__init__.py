"""Fuzzing: every decoder and encoder, built with sanitizers, on mutations of bytes that brokers have sent.

``make fuzz MINUTES=10`` builds and runs them, see `tests.fuzz.__main__`. Inputs in ``corpus/`` reach code that the
recordings do not reach; the ordinary tests run them as well (test_corpus.py).
"""
