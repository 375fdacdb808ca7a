"""What reports write: grids, numbers, names, LaTeX."""
