"""Connections to NSQ: sessions, who serves what, and who we are."""
