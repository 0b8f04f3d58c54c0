"""Connections to NSQ: sessions, discovery and authentication."""
