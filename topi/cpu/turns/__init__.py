"""Transpositions on CPUs."""
