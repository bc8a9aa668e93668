"""Grading mathematical answers."""
