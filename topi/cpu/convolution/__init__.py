"""Convolutions on CPUs: direct, grouped, depthwise and Winograd."""
