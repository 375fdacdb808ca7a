"""The tasks: one YAML file per dataset, and bundled demonstration data, read as package resources."""
