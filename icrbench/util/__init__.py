"""What every floor may use: errors in one sentence, whole files, caches, progress, YAML with line numbers."""
