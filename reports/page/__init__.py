"""The page: a study as one HTML file that needs no network. Nothing is imported here."""
