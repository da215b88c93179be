"""Elementwise, broadcasting and index-mapping groups on CPUs."""
