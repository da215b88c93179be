"""Reductions on CPUs."""
