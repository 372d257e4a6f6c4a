"""What is wrong with a node or its machine before it costs a round: typed findings, each with evidence and a fix."""
