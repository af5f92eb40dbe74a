"""Encoders put to other uses."""
