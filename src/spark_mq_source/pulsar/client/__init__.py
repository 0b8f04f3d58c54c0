"""Connections to Pulsar: sessions, who serves what, and who we are."""
