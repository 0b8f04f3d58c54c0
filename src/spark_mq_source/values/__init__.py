"""Values of messages as Spark columns: decoders and encoders that the formats share."""
