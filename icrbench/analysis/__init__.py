"""What a fitted method does inside the model: analyses that run it, stored as json for figures and tables to read."""
