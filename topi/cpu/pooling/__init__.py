"""Pooling: reductions over windows on CPUs."""
