"""Published datasets: digits in IDX files, and UltraMNIST composed of them."""
