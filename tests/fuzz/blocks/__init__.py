"""Random networks of blocks that people build, with dynamic sizes."""
