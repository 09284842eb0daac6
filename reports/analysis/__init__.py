"""What the records say: differences over seeds, effects, gains, agreement with the paper. Nothing is imported here."""
