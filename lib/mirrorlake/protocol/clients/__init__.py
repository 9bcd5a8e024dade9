"""The settings of the two Python clients, and the tokens that they log in with."""
