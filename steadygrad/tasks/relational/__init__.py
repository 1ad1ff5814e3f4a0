"""Tasks whose answer depends on the relations between objects, not on the objects themselves."""
