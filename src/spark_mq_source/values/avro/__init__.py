"""Avro values: schemas, the steps that read and write them, and the compiled loops."""
