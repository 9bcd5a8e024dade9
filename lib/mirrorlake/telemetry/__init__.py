"""What others see of a job while it runs: its metrics and its health, served and pushed."""
