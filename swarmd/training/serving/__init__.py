"""Serving a model: over HTTP like OpenAI's and vLLM's servers, and in a terminal."""
