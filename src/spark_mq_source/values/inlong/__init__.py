"""Messages of Apache InLong: InLongMsg and its protobuf form, with the records of streams."""
