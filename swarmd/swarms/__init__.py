"""What is trained: swarms draw questions, score completions and say how groups are named on the wire."""
