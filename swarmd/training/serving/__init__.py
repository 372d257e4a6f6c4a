"""A model that answers: over HTTP as OpenAI's and vLLM's servers do, and in a terminal."""
