"""Published data sets: digits in IDX files, and UltraMNIST drawn from them."""
