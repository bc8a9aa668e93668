"""Grading programs by tests, in a sandbox."""
