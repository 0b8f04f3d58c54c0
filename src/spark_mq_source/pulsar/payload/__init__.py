"""What Pulsar's messages hold, as Arrow columns and back: decoders, encoders and the columns' types."""
