"""JSON values: the steps that read them, the compiled loop, and the texts that are written."""
