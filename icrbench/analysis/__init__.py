"""What a fitted method does inside the model, and ICR's theory on synthetic data, as json for tables and figures."""
