"""What larger runs will measure, from smaller ones, and how it came out. Nothing is imported here."""
