"""Dimension algebra, the rules of operators, and the analysis that names every dimension of a graph."""
