"""The results folder: records, example rows and fits. Only `artefact` and `find_fit` need torch."""
