"""Weights fetched from peers: who offers them, and chunks from several at once."""
