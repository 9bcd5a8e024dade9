"""Mutation checks (`make mutants`): breaks one promise of the code at a time, and sees whether a test notices."""
