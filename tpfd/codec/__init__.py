"""Payloads between JSON text and typed values, exactly. Pure."""
