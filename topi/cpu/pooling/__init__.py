"""Windows that are reduced on CPUs."""
