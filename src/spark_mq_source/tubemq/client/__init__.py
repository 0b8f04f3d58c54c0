"""Connections to TubeMQ: sessions, who serves what, and who we are."""
