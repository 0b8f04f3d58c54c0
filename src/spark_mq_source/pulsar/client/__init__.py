"""Connections to Pulsar: sessions, lookups, authentication."""
