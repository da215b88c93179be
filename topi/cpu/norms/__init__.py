"""Softmax and normalisations on CPUs: statistics of elements, and steps that use them."""
