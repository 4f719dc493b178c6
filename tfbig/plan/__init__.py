"""Plans: from a graph, an image size and a budget to sweeps, strips, and a store for each image."""
