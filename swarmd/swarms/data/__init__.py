"""Questions from files and data sets."""
