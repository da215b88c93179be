"""Softmax and normalisations on CPUs: row statistics and the elementwise steps that use them."""
