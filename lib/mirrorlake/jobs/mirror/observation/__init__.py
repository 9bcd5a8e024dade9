"""What a mirror job notices and tells: its progress, the lag, the canary, and what it does not get on with."""
