"""Finds what is wrong with a node or its machine before it costs a round: typed findings with evidence and a fix."""
