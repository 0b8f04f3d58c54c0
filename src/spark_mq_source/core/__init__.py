"""Shared building blocks, pure: no protocol, socket or clock."""
