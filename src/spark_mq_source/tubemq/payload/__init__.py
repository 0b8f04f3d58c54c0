"""TubeMQ's messages as Arrow columns and back: decoders, encoders and the columns' types."""
