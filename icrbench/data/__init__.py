"""Tasks, their rows and where they come from; what train pools share with test splits."""
