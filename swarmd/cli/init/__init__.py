"""`swarmd init`: a node made by answering questions."""
