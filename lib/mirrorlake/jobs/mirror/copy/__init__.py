"""The task that copies one slot: it reads the source, writes into an open transaction, and reports to the driver."""
