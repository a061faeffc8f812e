"""Which dimensions are cut: the classes of a graph, what each cut costs, and the cheapest plan."""
