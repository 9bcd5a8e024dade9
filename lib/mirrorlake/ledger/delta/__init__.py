"""Delta tables, whatever they hold: creating and reading them, appending, and commits beside other writers."""
