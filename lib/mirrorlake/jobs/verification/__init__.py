"""The verify job: compares both logs record by record, by the exact map."""
