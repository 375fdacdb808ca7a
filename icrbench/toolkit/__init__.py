"""What methods share: demonstrations, episodes, reading states, choosing on held-out rows, training."""
