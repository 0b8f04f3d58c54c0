"""Connections to TubeMQ: sessions, masters, group members, authentication."""
