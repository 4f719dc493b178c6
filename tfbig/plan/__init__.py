"""Plans: from a graph, an image size and a budget to sweeps, strips, and where each tensor is stored."""
