"""The verify job: both logs, held against each other on the exact map."""
