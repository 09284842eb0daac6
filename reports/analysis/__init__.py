"""What the records say: differences over seeds, and agreement with the paper. Nothing is imported here."""
