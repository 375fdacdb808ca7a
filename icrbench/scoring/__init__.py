"""From an example to tokens, and from tokens to option logits: the one scorer."""
