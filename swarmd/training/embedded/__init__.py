"""The embedded models: how they are made, and what they are taught first."""
