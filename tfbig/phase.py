"""Phase layout."""

from tfbig.graph import Graph


def rewrite(graph: Graph) -> None:
    """Nothing yet."""
